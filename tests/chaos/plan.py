"""What will happen in a run, all of it drawn from one seed before it begins."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any, Literal

from tests.chaos.cases import PROMPTS, Case, Target
from worker_vllm.emulator.faults import FaultKind

Fate = Literal["answered", "cancelled", "refused", "too slow"]
CANCEL_PHASES = ("queued", "taken", "mid-stream", "posting", "after the end")

PAUSE, STOP = "everything SIGSTOP, SIGCONT", "stop message"
TAKES = ("job-take", "job-take-batch")


@dataclass(frozen=True)
class Shot:
    """A fault on the wire that strikes a few calls."""

    kind: FaultKind
    routes: tuple[str, ...]
    options: dict[str, Any]

    @property
    def name(self) -> str:
        code = f" {self.options['status']}" if self.kind == "status" else ""
        return f"{self.kind}{code} on {self.routes[0]}"

    def is_named(self, hit: str) -> bool:
        """Whether a hit, as `Tap.hits` names it, can be this one's: a batch is taken like a single job."""
        return hit.replace("job-take-batch", "job-take") == self.name


def _shot(kind: FaultKind, *routes: str, **options: Any) -> Shot:
    return Shot(kind, routes, {"times": 1, **options})


SHOTS = (
    _shot("reset_before", "job-done", times=2),
    _shot("reset_before", "job-stream"),
    _shot("reset_before", *TAKES, times=2),
    _shot("reset_before", "job-stop"),
    _shot("reset_before", "ping"),
    _shot("reset_after", "job-done", times=2),
    _shot("reset_after", "job-stream"),
    _shot("reset_after", *TAKES),
    _shot("reset_after", "job-stop"),
    _shot("status", "job-done", status=500, times=2),
    _shot("status", "job-done", status=429, times=2),
    _shot("status", "job-done", status=503, times=3),
    _shot("status", "job-stream", status=429, times=2),
    _shot("status", "job-stream", status=502),
    _shot("status", *TAKES, status=500, times=3),
    _shot("status", *TAKES, status=429),
    _shot("status", "job-stop", status=502),
    _shot("status", "ping", status=500),
    _shot("hold", *TAKES, seconds=2.0),
    _shot("hold", "job-stop", seconds=2.0),
    _shot("hold", "job-done", seconds=2.0),
    _shot("hold", "job-stream", seconds=2.0),
    _shot("hold", "ping", seconds=1.5),
    _shot("ignore", "ping", times=3),
    _shot("repeat", "job-done", times=3),
    _shot("redeliver", *TAKES, times=2),
)
DELAY_SECONDS, DELAY_PROBABILITY = 0.3, 0.05


@dataclass(frozen=True)
class JobPlan:
    """One job that somebody wants answered.

    Attributes:
        cancel_in: the phase in which it is cancelled, for that fate.
    """

    number: int
    case: Case
    stream: bool
    fate: Fate
    cancel_in: str = ""


@dataclass(frozen=True)
class Event:
    """Something that happens once so many jobs are settled.

    Attributes:
        what: one of the target's `kills`, PAUSE, STOP, or a `Shot`.
    """

    after: int
    what: str | Shot

    @property
    def name(self) -> str:
        return self.what if isinstance(self.what, str) else self.what.name


@dataclass(frozen=True)
class Plan:
    seed: int
    jobs: tuple[JobPlan, ...]
    events: tuple[Event, ...]

    @classmethod
    def make(cls, seed: int, target: Target, jobs: int) -> Plan:
        """Draw a plan: a tenth of the jobs is cancelled, 3 of 100 are refused or too slow. Each kind of kill
        comes at least once, and once more for 400 jobs; each fault once for 100."""
        dice = random.Random(seed)
        rounds = max(1, jobs // 100)
        kills = target.kills * max(1, jobs // 400)
        planned = tuple(_job(dice, number, target) for number in range(jobs))
        what: list[str | Shot] = [*kills, PAUSE, *(STOP for _ in range(3 * rounds))]
        what += [shot for shot in SHOTS for _ in range(rounds)]
        last = jobs * 7 // 10  # so that all of it finds something to strike
        events = sorted((Event(dice.randrange(last), entry) for entry in what), key=lambda event: event.after)
        return cls(seed, planned, tuple(events))


def _job(dice: random.Random, number: int, target: Target) -> JobPlan:
    case = Case(dice.choice(target.kinds), dice.choice(PROMPTS), dice.choice(target.tokens))
    stream = dice.random() < 0.5
    roll = number % 100  # exact shares in any run of 100
    if roll % 10 == 3:
        longest = Case(case.kind, case.prompt, max(target.tokens))
        return JobPlan(number, longest, stream, "cancelled", dice.choice(CANCEL_PHASES))
    if roll in (17, 67):
        return JobPlan(number, case, stream, "refused")
    if roll == 45:
        return JobPlan(number, Case(case.kind, case.prompt, target.endless_tokens), stream, "too slow")
    return JobPlan(number, case, stream, "answered")
