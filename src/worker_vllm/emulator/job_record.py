"""One job as the platform keeps it, and how it reads from outside."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .pulse import Pulse


class JobState(StrEnum):
    """The states of runpod-platform.md 1.8."""

    IN_QUEUE = "IN_QUEUE"
    IN_PROGRESS = "IN_PROGRESS"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMED_OUT = "TIMED_OUT"

    @property
    def terminal(self) -> bool:
        """Whether nothing but /retry leads out of this state."""
        return self not in (JobState.IN_QUEUE, JobState.IN_PROGRESS)


RETRYABLE = frozenset({JobState.FAILED, JobState.TIMED_OUT})


class _Nothing:
    """The type of `NOTHING`."""


NOTHING = _Nothing()
"""No output was given; None is an output."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What a caller asked for, checked.

    Attributes:
        extras: further top-level keys that go to the worker with the job (webhook, s3Config).
    """

    job_input: Any
    execution_timeout_ms: int
    ttl_ms: int
    webhook: str | None = None
    policy: Mapping[str, Any] | None = None
    extras: Mapping[str, Any] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class Job:
    """A job and all that happened to it. Times are seconds of the queue's clock; changed by `JobQueue` alone.

    Attributes:
        remove_at: when the record goes: its ttl, and once it is finished the end of its retention.
        last_seen_at: when its worker last showed that it has the job.
        attempt: counts pick-ups.
        losses: workers lost with it since it was submitted or retried by hand.
        chunks: streamed outputs that no reader has taken yet.
        changed: fires on every change, for whoever waits.
    """

    id: str
    submission: Submission
    sync: bool
    retention_s: float
    submitted_at: float
    ttl_at: float
    remove_at: float
    state: JobState = JobState.IN_QUEUE
    taken_at: float | None = None
    finished_at: float | None = None
    execute_by: float | None = None
    last_seen_at: float = 0.0
    worker_id: str | None = None
    attempt: int = 0
    losses: int = 0
    retries: int = 0
    output: Any = NOTHING
    error: Any = NOTHING
    chunks: list[Any] = field(default_factory=list)
    removed: bool = False
    changed: Pulse = field(default_factory=Pulse)

    def drain(self) -> list[Any]:
        """The chunks that no reader has had yet; they are had now."""
        chunks, self.chunks = self.chunks, []
        return chunks

    async def wait_ended(self, timeout_s: float) -> bool:
        """Wait until the job is finished or its record is gone; false when `timeout_s` passed first."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while not (self.state.terminal or self.removed):
            if not await self.changed.wait(deadline - loop.time()):
                return False
        return True

    def short_view(self) -> dict[str, Any]:
        """Id and status: what /run, /cancel, /retry and an unfinished /runsync answer."""
        return {"id": self.id, "status": self.state.value}

    def view(self) -> dict[str, Any]:
        """The job object of /status, /runsync and webhooks.

        A finished job always has workerId and both times, because clients with typed models insist on them.
        """
        body: dict[str, Any] = self.short_view()
        ended = self.state.terminal
        until = self.finished_at if self.finished_at is not None else self.submitted_at
        if self.taken_at is not None or ended:
            body["delayTime"] = _milliseconds(
                self.submitted_at, self.taken_at if self.taken_at is not None else until
            )
            body["workerId"] = self.worker_id or ""
        if ended:
            body["executionTime"] = _milliseconds(
                self.taken_at if self.taken_at is not None else until, until
            )
        if self.output is not NOTHING:
            body["output"] = self.output
        if self.error is not NOTHING:
            body["error"] = self.error
        if self.retries:
            body["retries"] = self.retries
        return body

    def webhook_view(self) -> dict[str, Any]:
        """The job object with its input and webhook address."""
        return {**self.view(), "input": self.submission.job_input, "webhook": self.submission.webhook}

    def worker_view(self, *, send_policy: bool) -> dict[str, Any]:
        """What job-take hands to the worker."""
        body = {**self.submission.extras, "id": self.id, "input": self.submission.job_input}
        if send_policy and self.submission.policy is not None:
            body["policy"] = dict(self.submission.policy)
        return body


def _milliseconds(start: float, end: float) -> int:
    return max(0, round((end - start) * 1000))
