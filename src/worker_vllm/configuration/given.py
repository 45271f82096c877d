"""A raw value and where it stands: what every source of the configuration is read into."""

from __future__ import annotations

from dataclasses import dataclass

from worker_vllm.settings import Source


@dataclass(frozen=True)
class Given:
    """One argument's value as somebody wrote it.

    Attributes:
        raw: text, or what YAML made of it. source: which source. variable: the variable, key or flag, for
        messages. meant: whether it is taken at its word; a plain variable is not, where the old forms sent
        the same value.
    """

    raw: object
    source: Source
    variable: str
    meant: bool = True
