"""Everything that a platform saw of a run's jobs, whoever asked: what it took and from which attempt."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.plan import STOP, TAKES
from worker_vllm.emulator.faults import Fault
from worker_vllm.emulator.job_record import Job
from worker_vllm.emulator.server import Platform


@dataclass
class Attempt:
    """One pick-up of a job.

    Attributes:
        chunks: what was streamed in it and accepted.
        ended_at: when the job reached its end in it, or was taken from its worker.
        lost: whether it was taken from its worker because that was gone.
        handed: whether its hand-over reached the worker, as far as the platform's faults are concerned.
    """

    number: int
    taken_at: float
    chunks: list[Any] = field(default_factory=list)
    ended_at: float | None = None
    lost: bool = False
    handed: bool = True


@dataclass
class History:
    """One platform job.

    Attributes:
        ends: how often it has reached a terminal state.
        faults: names of the faults that struck calls about it.
        delivered_twice: whether a hand-over of it came again, which nothing in the platform's books tells.
    """

    attempts: list[Attempt] = field(default_factory=list)
    ends: int = 0
    faults: list[str] = field(default_factory=list)
    delivered_twice: bool = False

    @property
    def stopped(self) -> bool:
        """Whether a stop message was sent for it that nobody had asked for."""
        return STOP in self.faults

    @property
    def may_have_run_twice(self) -> bool:
        """Whether one attempt can hold two runs: the worker dropped it as told, and then it came again."""
        return self.stopped and self.delivered_twice


class Tap:
    """Listens to a platform's queue and its faults from the moment it is made."""

    def __init__(self, platform: Platform) -> None:
        self.histories: defaultdict[str, History] = defaultdict(History)
        self.hits: Counter[str] = Counter()
        self._hand_over_fault: str | None = None
        self._platform = platform
        queue, faults = platform.queue, platform.faults
        self._take, self._add_chunks = queue.take, queue.add_chunks
        self._worker_gone, self._pick = queue.worker_gone, faults.pick
        self._on_end = queue.on_end
        for name in ("take", "add_chunks", "worker_gone"):
            setattr(queue, name, getattr(self, name))
        queue.on_end = self.on_end
        faults.pick = self.pick  # type: ignore[method-assign]

    def take(self, worker_id: str, limit: int) -> list[Job]:
        jobs = self._take(worker_id, limit)
        for job in jobs:
            history = self.histories[job.id]
            if history.attempts and history.attempts[-1].ended_at is None:
                history.attempts[-1].ended_at = time.monotonic()
            history.delivered_twice |= self._hand_over_fault == "redeliver"
            history.attempts.append(
                Attempt(job.attempt, time.monotonic(), handed=self._hand_over_fault != "reset_after")
            )
        return jobs

    def add_chunks(self, job: Job, worker_id: str, chunks: list[Any]) -> Any:
        reception = self._add_chunks(job, worker_id, chunks)
        if reception == "accepted":
            self.histories[job.id].attempts[-1].chunks += chunks
        return reception

    def worker_gone(self, worker_id: str) -> None:
        for job in self._platform.queue.running(worker_id):
            attempt = self.histories[job.id].attempts[-1]
            attempt.ended_at, attempt.lost = time.monotonic(), True
        self._worker_gone(worker_id)

    def on_end(self, job: Job) -> None:
        history = self.histories[job.id]
        history.ends += 1
        if history.attempts and history.attempts[-1].ended_at is None:
            history.attempts[-1].ended_at = time.monotonic()
        self._on_end(job)

    def pick(self, route: str, path: str) -> Fault | None:
        fault = self._pick(route, path)
        if route in TAKES:  # one poll at a time
            self._hand_over_fault = fault and fault.kind
        if fault is not None:
            name = f"{fault.kind}{f' {fault.status}' if fault.kind == 'status' else ''} on {route}"
            self.hits[name] += 1
            job_id = path.rpartition("/")[2].partition("&")[0]
            if route in ("job-stream", "job-done") and job_id in self.histories:
                self.histories[job_id].faults.append(name)
        return fault

    def running(self, worker_id: str) -> list[str]:
        """Ids of the jobs that a worker has."""
        return [job.id for job in self._platform.queue.running(worker_id)]


def within(attempt: Attempt, windows: Iterable[tuple[float, float]], slack: float = 0.5) -> bool:
    """Whether an attempt overlapped one of these times."""
    ended_at = attempt.ended_at or time.monotonic()
    return any(attempt.taken_at <= until + slack and ended_at >= since - slack for since, until in windows)
