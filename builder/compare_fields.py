"""`python -m builder.compare_fields OLD NEW`: what another vLLM takes that this one does not, or the reverse.

Both are tables as `record_fields` writes them. Prints Markdown for an issue. Exit code 0 where they take the
same, 3 where they differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from worker_vllm.configuration.arguments import Argument, ArgumentTable

DIFFERENT = 3
COMPARED = (
    "home",
    "kind",
    "many",
    "nullable",
    "default",
    "choices",
    "keys",
    "required",
    "flags",
    "negative_flags",
)
"""What of an argument decides how its text is read. Its help does not."""

_SHOWN = 80


def main(arguments: Sequence[str]) -> int:
    """Print the differences and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m builder.compare_fields")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    options = parser.parse_args(arguments)
    old, new = (ArgumentTable.model_validate_json(path.read_bytes()) for path in (options.old, options.new))
    sections = [section for section in differences(old, new) if section]
    print(f"vLLM {new.version} against {old.version}, from vLLM's own parser.\n")
    print("\n".join(sections) or "It takes the same.")
    return DIFFERENT if sections else 0


def differences(old: ArgumentTable, new: ArgumentTable) -> Iterator[str]:
    """The sections of the report; empty texts where there is no difference."""
    before, after = old.by_name, new.by_name
    yield _section("Arguments that are new", [_described(after[name]) for name in _missing(after, before)])
    yield _section("Arguments that are gone", [f"`{name}`" for name in _missing(before, after)])
    changed = [
        f"`{name}`: {change}"
        for name in sorted(before.keys() & after.keys())
        if (change := ", ".join(_changes(before[name], after[name])))
    ]
    yield _section("Arguments that are read in another way", changed)
    for registry in sorted(old.registries.keys() | new.registries.keys()):
        known, now = old.registries.get(registry, ()), new.registries.get(registry, ())
        lines = [f"new: `{name}`" for name in _missing(now, known)]
        lines += [f"gone: `{name}`" for name in _missing(known, now)]
        yield _section(f"Values of `{registry}`", lines)
    lines = [f"new: `{name}`" for name in _missing(new.environment, old.environment)]
    lines += [f"gone: `{name}`" for name in _missing(old.environment, new.environment)]
    yield _section("Variables that vLLM reads itself", lines)


def _missing(names: Collection[str], others: Collection[str]) -> list[str]:
    return sorted(set(names) - set(others))


def _described(argument: Argument) -> str:
    return f"`{argument.name}` ({argument.home}, {argument.kind}, default {_short(argument.default)})"


def _changes(before: Argument, after: Argument) -> Iterator[str]:
    for name in COMPARED:
        old, new = getattr(before, name), getattr(after, name)
        if isinstance(old, tuple) and isinstance(new, tuple):
            parts = [f"+{_short(item)}" for item in new if item not in old]
            parts += [f"-{_short(item)}" for item in old if item not in new]
            if parts:
                yield f"{name} {' '.join(parts)}"
        elif old != new:
            yield f"{name} {_short(old)} → {_short(new)}"


def _section(title: str, lines: Sequence[str]) -> str:
    return f"### {title}\n\n" + "".join(f"- {line}\n" for line in lines) if lines else ""


def _short(value: object) -> str:
    text = f"`{value!r}`" if not isinstance(value, str) or not value else f"`{value}`"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 2]}…`"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
