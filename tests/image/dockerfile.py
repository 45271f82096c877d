"""The Dockerfile as BuildKit's own parser reads it, stage by stage."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from pathlib import Path

import dockerfile

ROOT = Path(__file__).parents[2]
DOCKERFILE = ROOT / "Dockerfile"


@dataclass(frozen=True)
class Step:
    """One instruction.

    Attributes:
        name: in upper case.
        words: what follows; of ENV and LABEL names and values in turn, of a shell's RUN the whole line.
        flags: the words that begin with --, by their name.
    """

    name: str
    words: tuple[str, ...]
    flags: tuple[tuple[str, str], ...]
    line: int

    def flag(self, name: str) -> str | None:
        return dict(self.flags).get(name)

    @property
    def pairs(self) -> dict[str, str]:
        """Of ENV and LABEL."""
        bare = [word.strip('"') for word in self.words]
        return dict(zip(bare[::2], bare[1::2], strict=True))

    @property
    def sources(self) -> list[str]:
        """What a COPY takes from the build context, or a RUN sees of it."""
        if self.name == "COPY" and self.flag("from") is None:
            return list(self.words[:-1])
        mounts = [dict(re.findall(r"(\w+)=([^,]+)", value)) for name, value in self.flags if name == "mount"]
        return [mount["source"] for mount in mounts if mount.get("type") == "bind"]


@dataclass(frozen=True)
class Stage:
    """What one FROM begins."""

    name: str
    base: str
    steps: tuple[Step, ...]

    def all(self, name: str) -> list[Step]:
        return [step for step in self.steps if step.name == name]

    def position(self, name: str, *words: str) -> int:
        """Where the one instruction stands that has all these words."""
        (found,) = [
            place
            for place, step in enumerate(self.steps)
            if step.name == name and all(word in " ".join(step.words) for word in words)
        ]
        return found


@functools.cache
def arguments() -> dict[str, str]:
    """The arguments before the first FROM, with their defaults."""
    found = {}
    for command in dockerfile.parse_file(str(DOCKERFILE)):
        if command.cmd.upper() == "FROM":
            return found
        name, _, default = command.value[0].partition("=")
        found[name] = default
    return found


@functools.cache
def stages() -> dict[str, Stage]:
    """The stages in order."""
    found: list[tuple[str, str, list[Step]]] = []
    for command in dockerfile.parse_file(str(DOCKERFILE)):
        if command.cmd.upper() == "FROM":
            base, _, name = command.value
            found.append((name, base, []))
        elif found:
            flags = tuple(tuple(flag.removeprefix("--").split("=", 1)) for flag in command.flags)
            found[-1][2].append(Step(command.cmd.upper(), tuple(command.value), flags, command.start_line))
    return {name: Stage(name, base, tuple(steps)) for name, base, steps in found}


def steps(name: str) -> list[Step]:
    """The instructions of a kind in all stages."""
    return [step for stage in stages().values() for step in stage.all(name)]


def declared() -> dict[str, str | None]:
    """Every build argument with its default; None where a stage only asks for one that stands above."""
    found: dict[str, str | None] = {}
    for step in steps("ARG"):
        name, equals, default = step.words[0].partition("=")
        found.setdefault(name, default.strip('"') if equals else None)
    return {**found, **arguments()}
