"""Pieces of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def code(text: str) -> str:
    """`text` as code."""
    return f"`{text}`"


def codes(texts: Iterable[str]) -> str:
    """Each of `texts` as code, with commas between them."""
    return ", ".join(map(code, texts))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; bars in its cells are escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
