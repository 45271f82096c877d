"""The documents as tests read them: blocks of code, examples, and the shape of what an example shows."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"
JOBS = ROOT / "docs" / "jobs.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
RELIABILITY = ROOT / "docs" / "reliability.md"

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_STREAM = ("data: ", "event: ")
_EVENT_DATA = re.compile(r"^data: (.*)$", re.MULTILINE)

# Values under these names say the same whatever the model makes of a prompt.
_EXACT = {"status", "input", "prompt_index", "param", "code", "type", "message", "object", "role"}


@dataclass(frozen=True)
class Block:
    """A block of code.

    Attributes:
        language: what stands behind the fence.
        text: its lines.
        line: where it begins in its document.
        prints: the JSON block right after it, parsed: what it gives. None where there is none.
    """

    language: str
    text: str
    line: int
    prints: Any = None


def blocks(document: Path) -> list[Block]:
    """All blocks in order. A JSON block that is no job is what the block before it gives, and part of it."""
    text = document.read_text()
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        language, content = match.groups()
        if language == "json" and "input" not in (value := json.loads(content)):
            found[-1] = replace(found[-1], prints=value)
        else:
            found.append(Block(language, content, text.count("\n", 0, match.start()) + 1))
    return found


def words(document: Path) -> set[str]:
    """What stands in code spans, whole and in parts: fields, routes, variables, commands."""
    spans = set(_SPAN.findall(_BLOCK.sub("", document.read_text())))
    return spans | {word for span in spans for word in re.findall(r"[\w./{}-]+", span)}


def section(document: Path, title: str) -> str:
    """The text under a heading, up to the next heading of its level or above."""
    level, _, _ = title.partition(" ")
    match = re.search(
        rf"^{re.escape(title)}\n(.*?)(?=^#{{1,{len(level)}}} |\Z)",
        document.read_text(),
        re.MULTILINE | re.DOTALL,
    )
    assert match is not None, f"{document.name} has no section {title!r}"
    return match.group(1)


def rows(text: str) -> Iterator[list[str]]:
    """The cells of each row of the tables in a text, headings and rules left out."""
    lines = text.splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|") and not line.startswith("|-") and not following.startswith("|-"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def shape(value: Any, name: str = "") -> Any:
    """What an example shows that is not the model's doing.

    Keys and kinds of value; the values themselves under some names; lists as the sets of their items' shapes;
    JSON inside text, and the events of a stream, as what they hold.
    """
    if isinstance(value, dict):
        return {"<id>" if key.isdigit() else key: shape(item, key) for key, item in value.items()}
    if isinstance(value, list):
        return _set_of(value)
    if isinstance(value, str) and value.startswith(_STREAM):
        events = _EVENT_DATA.findall(value)
        return _set_of([data if data == "[DONE]" else json.loads(data) for data in events])
    if isinstance(value, str) and value.startswith("{"):
        try:
            return ["JSON", shape(json.loads(value))]
        except ValueError:
            return "text"
    if value is None or name in _EXACT or value == "[DONE]":
        return value
    if isinstance(value, bool):
        return "boolean"
    return "text" if isinstance(value, str) else "number"


def _set_of(items: list[Any]) -> list[Any]:
    if len(items) > 1 and all(isinstance(item, str) and item.startswith(_STREAM) for item in items):
        items = ["".join(items)]  # how a stream is cut is the platform's pace
    distinct = {json.dumps(shape(item), sort_keys=True) for item in items}
    return [json.loads(text) for text in sorted(distinct)]
