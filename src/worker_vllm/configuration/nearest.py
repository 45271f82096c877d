"""The nearest right name to a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

# difflib's cost grows with the square of the length, and nobody mistypes a whole page for a name
_MAX_LENGTH = 64


def nearest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The name in `known` that looks most like `word`, in any case and with hyphens or underscores; None if
    none does.

    Args:
        cutoff: how alike they must be, from 0 to 1.
    """
    if len(word) > _MAX_LENGTH:
        return None
    folded = {_fold(name): name for name in known}
    matches = difflib.get_close_matches(_fold(word), folded, n=1, cutoff=cutoff)
    return folded[matches[0]] if matches else None


def _fold(name: str) -> str:
    return name.lower().replace("-", "_")
