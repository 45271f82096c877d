"""From process start to the first token, by phase, as a target's own log tells it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

# The worker's own phases first, then what every vLLM prints, which is all that a peer's log has.
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), name)
    for pattern, name in (
        (r"phase: (?P<name>\S[^\"\\]*?) (?P<seconds>\d+(?:\.\d+)?) s\b", ""),
        (r"Loading weights took (?P<seconds>\d+\.\d+) seconds", "vllm: weights"),
        (r"Model loading took [\d.]+ GiB memory and (?P<seconds>\d+\.\d+) seconds", "vllm: model"),
        (r"torch\.compile (?:took|takes) (?P<seconds>\d+\.\d+) s in total", "vllm: compile"),
        (r"Graph capturing finished in (?P<seconds>\d+) secs", "vllm: graphs"),
        (r"init engine \(.*?\) took (?P<seconds>\d+\.\d+) s", "vllm: engine init"),
    )
)


@dataclass(frozen=True)
class Start:
    """One start of one target. Seconds count from the start of the worker's process.

    Attributes:
        target: the target's name.
        ready_seconds: until it would take requests.
        first_token_seconds: until the first token of a first request reached the client.
        phases: name and length of each phase that the log told of, in the log's order; they may overlap.
    """

    target: str
    ready_seconds: float
    first_token_seconds: float
    phases: tuple[tuple[str, float], ...]

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Start:
        """The inverse of `dataclasses.asdict`."""
        return cls(**{**value, "phases": tuple((name, seconds) for name, seconds in value["phases"])})


class PhaseLog:
    """Collects the phases from the lines of a log.

    Attributes:
        phases: name to seconds; a phase told of twice keeps the longer time (one line per engine process).
    """

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    def read(self, line: str) -> None:
        """Look at one line."""
        for pattern, name in _PATTERNS:
            match = pattern.search(line)
            if match:
                phase, seconds = name or match["name"], float(match["seconds"])
                self.phases[phase] = max(seconds, self.phases.get(phase, 0.0))
