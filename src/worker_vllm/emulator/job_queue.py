"""The platform's job state machine (runpod-platform.md 1.8), synchronous, with a clock for tests to replace.

    submit -> IN_QUEUE -> IN_PROGRESS -> COMPLETED | FAILED | TIMED_OUT | CANCELLED
                 ^             |
                 +-------------+  its worker was lost (once; the second loss fails it)

Nothing here waits or talks: the callbacks and `Job.changed` tell who must hear of a change.
"""

from __future__ import annotations

import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Literal

from .deadlines import Deadlines
from .job_record import NOTHING, RETRYABLE, Job, JobState, Submission
from .policy import Policy
from .wire import WireError

Reception = Literal["accepted", "duplicate", "late"]
"""What became of a worker's post: taken, repeated after the end, or from a worker that no longer holds the
job.
"""


class JobQueue:
    """All jobs that are still remembered.

    Args:
        policy: the platform's choices.
        clock: seconds that only ever grow.

    Attributes:
        on_queued: called when a job can be taken.
        on_stop: called with worker id and job id when a worker is to drop a job.
        on_end: called with each job that reaches a terminal state.
        counts: since the start: completed, failed (TIMED_OUT included), retried, and posts by `Reception`.
    """

    def __init__(self, policy: Policy, clock: Callable[[], float] = time.monotonic) -> None:
        self.policy = policy
        self.clock = clock
        self.on_queued: Callable[[], None] = _ignore
        self.on_stop: Callable[[str, str], None] = _ignore
        self.on_end: Callable[[Job], None] = _ignore
        self.counts = dict.fromkeys(("completed", "failed", "retried", "accepted", "duplicate", "late"), 0)
        self._jobs: dict[str, Job] = {}
        self._waiting: OrderedDict[str, Job] = OrderedDict()
        self._running: dict[str, Job] = {}
        self._pinged_at: dict[str, float] = {}
        self._deadlines = Deadlines()
        self._look_for_lost_at = 0.0

    def submit(self, submission: Submission, *, sync: bool) -> Job:
        """Queue a new job; `sync` ones carry the `sync-` prefix and the short retention."""
        now = self.clock()
        prefix = "sync-" if sync else ""
        ttl_at = now + submission.ttl_ms / 1000
        job = Job(
            id=f"{prefix}{uuid.uuid4()}-{self.policy.region}",
            submission=submission,
            sync=sync,
            retention_s=self.policy.runsync_retention_s if sync else self.policy.run_retention_s,
            submitted_at=now,
            ttl_at=ttl_at,
            remove_at=ttl_at,
        )
        self._jobs[job.id] = job
        self._deadlines.add(ttl_at, job.id)
        self._enqueue(job)
        return job

    def get(self, job_id: str) -> Job:
        """The job with this id.

        Raises:
            WireError: 404, never submitted or no longer kept.
        """
        self.sweep()
        job = self._jobs.get(job_id)
        if job is None:
            raise WireError(404, "job not found")
        return job

    def jobs(self) -> Iterable[Job]:
        """Every job still kept, oldest first."""
        return self._jobs.values()

    def keep_for(self, job: Job, seconds: float) -> None:
        """Keep a finished job's record so long from now; of an unfinished one, from its end."""
        job.retention_s = seconds
        if job.state.terminal:
            job.remove_at = self.clock() + seconds
            self._deadlines.add(job.remove_at, job.id)

    def cancel(self, job: Job) -> None:
        """Cancel a queued or running job; a finished one stays as it is."""
        if job.state.terminal:
            return
        self._stop(job)
        self._end(job, JobState.CANCELLED)

    def retry(self, job: Job) -> None:
        """Queue a FAILED or TIMED_OUT job again, under its id and without its old output.

        Raises:
            WireError: the job is in another state.
        """
        if job.state not in RETRYABLE:
            raise WireError(
                self.policy.retry_refused_status,
                f"job is {job.state}, only FAILED or TIMED_OUT can be retried",
            )
        now = self.clock()
        if job.ttl_at <= now:
            job.ttl_at = now + job.submission.ttl_ms / 1000
        job.remove_at = job.ttl_at
        job.losses = job.retries = 0
        self.counts["retried"] += 1
        self._reset(job, now)
        self._deadlines.add(job.remove_at, job.id)
        self._enqueue(job)

    def purge(self) -> int:
        """Forget every queued job; how many that were."""
        queued = list(self._waiting.values())
        for job in queued:
            self._remove(job)
        return len(queued)

    def totals(self) -> dict[str, int]:
        """The `jobs` object of /health."""
        done = {name: self.counts[name] for name in ("completed", "failed", "retried")}
        return {**done, "inProgress": len(self._running), "inQueue": len(self._waiting)}

    def take(self, worker_id: str, limit: int) -> list[Job]:
        """Hand the oldest queued jobs, at most `limit`, to a worker."""
        self.sweep()
        now = self.clock()
        taken = [self._waiting.popitem(last=False)[1] for _ in range(min(limit, len(self._waiting)))]
        for job in taken:
            job.state = JobState.IN_PROGRESS
            job.worker_id = worker_id
            job.taken_at = job.last_seen_at = now
            job.attempt += 1
            job.execute_by = now + job.submission.execution_timeout_ms / 1000
            self._running[job.id] = job
            self._deadlines.add(job.execute_by, job.id)
            job.changed.fire()
        return taken

    def add_chunks(self, job: Job, worker_id: str, chunks: list[Any]) -> Reception:
        """Take streamed output from the worker that holds the job."""
        reception = self._receive(job, worker_id)
        if reception == "accepted":
            job.chunks += chunks
            job.changed.fire()
        return reception

    def progress(self, job: Job, worker_id: str, output: Any) -> Reception:
        """Take a progress update: `output` shows on /status until the result replaces it."""
        reception = self._receive(job, worker_id)
        if reception == "accepted":
            job.output = output
            job.changed.fire()
        return reception

    def finish(self, job: Job, worker_id: str, output: Any = NOTHING, error: Any = NOTHING) -> Reception:
        """Take a final result: FAILED when there is an error, else COMPLETED."""
        reception = self._receive(job, worker_id)
        if reception == "late" and self.policy.late_result == "accept":
            self._stop(job)  # the one who holds it now
            job.worker_id = worker_id
            reception = "accepted"
        self.counts[reception] += 1
        if reception == "accepted":
            job.output, job.error = output, error
            self._end(job, JobState.COMPLETED if error is NOTHING else JobState.FAILED)
        return reception

    def seen(self, worker_id: str, job_ids: Iterable[str]) -> None:
        """Note a ping: this worker lives and names these jobs as its own."""
        self._pinged_at[worker_id] = self.clock()
        for job_id in job_ids:
            job = self._running.get(job_id)
            if job is not None and job.worker_id == worker_id:
                job.last_seen_at = self.clock()

    def worker_gone(self, worker_id: str) -> None:
        """The worker's process has ended: its jobs are lost."""
        self._pinged_at.pop(worker_id, None)
        for job in [job for job in self._running.values() if job.worker_id == worker_id]:
            self._lose(job)

    def running(self, worker_id: str) -> list[Job]:
        """The jobs that this worker holds."""
        return [job for job in self._running.values() if job.worker_id == worker_id]

    def busy_workers(self) -> set[str | None]:
        """The workers that hold a job."""
        return {job.worker_id for job in self._running.values()}

    def sweep(self) -> None:
        """Do all that is due: time-outs, lost jobs, records past their time."""
        now = self.clock()
        for job_id in self._deadlines.due(now):
            if job_id in self._jobs:
                self._apply_deadlines(self._jobs[job_id], now)
        if now >= self._look_for_lost_at:
            self._look_for_lost_at = now + min(1.0, self.policy.lost_after_s / 10)
            self._lose_silent(now - self.policy.lost_after_s)

    def _lose_silent(self, since: float) -> None:
        for job in [job for job in self._running.values() if job.last_seen_at < since]:
            # Only pings can be missed: a worker that has no ping URL (as on the Hub) is not lost so.
            if (pinged_at := self._pinged_at.get(job.worker_id or "")) is not None:
                if pinged_at < since:  # one that pings without the job needs no order to drop it
                    self._stop(job)
                self._lose(job)

    def _apply_deadlines(self, job: Job, now: float) -> None:
        if job.remove_at <= now:
            if job.state is JobState.IN_QUEUE and self.policy.ttl_in_queue == "timed_out":
                self._end(job, JobState.TIMED_OUT)
                job.remove_at = now + job.retention_s
                self._deadlines.add(job.remove_at, job.id)
                return
            self._stop(job)
            self._remove(job)
        elif job.state is JobState.IN_PROGRESS and job.execute_by is not None and job.execute_by <= now:
            self._stop(job)
            job.output, job.error = NOTHING, self.policy.timed_out_error
            self._end(job, JobState.TIMED_OUT)

    def _receive(self, job: Job, worker_id: str) -> Reception:
        if job.state.terminal:
            return "duplicate"
        if job.state is not JobState.IN_PROGRESS or job.worker_id != worker_id:
            return "late"
        job.last_seen_at = self.clock()
        return "accepted"

    def _stop(self, job: Job) -> None:
        if job.state is JobState.IN_PROGRESS and job.worker_id is not None:
            self.on_stop(job.worker_id, job.id)

    def _lose(self, job: Job) -> None:
        job.losses += 1
        if job.losses > self.policy.lost_retries:
            job.output, job.error = NOTHING, self.policy.lost_error.format(retries=job.retries)
            self._end(job, JobState.FAILED)
            return
        job.retries += 1
        self.counts["retried"] += 1
        self._reset(job, job.submitted_at)
        self._enqueue(job, first=True)

    def _reset(self, job: Job, submitted_at: float) -> None:
        """Back to the state before pick-up; delayTime counts from `submitted_at`."""
        self._running.pop(job.id, None)
        job.state = JobState.IN_QUEUE
        job.submitted_at = submitted_at
        job.taken_at = job.finished_at = job.execute_by = job.worker_id = None
        job.output = job.error = NOTHING
        job.chunks = []

    def _enqueue(self, job: Job, *, first: bool = False) -> None:
        self._waiting[job.id] = job
        if first:
            self._waiting.move_to_end(job.id, last=False)
        job.changed.fire()
        self.on_queued()

    def _end(self, job: Job, state: JobState) -> None:
        self._waiting.pop(job.id, None)
        self._running.pop(job.id, None)
        job.state = state
        job.finished_at = self.clock()
        job.remove_at = min(job.ttl_at, job.finished_at + job.retention_s)
        self._deadlines.add(job.remove_at, job.id)
        if state is JobState.COMPLETED:
            self.counts["completed"] += 1
        elif state in RETRYABLE:
            self.counts["failed"] += 1
        job.changed.fire()
        self.on_end(job)

    def _remove(self, job: Job) -> None:
        for index in (self._jobs, self._waiting, self._running):
            index.pop(job.id, None)
        job.removed = True
        job.changed.fire()


def _ignore(*_: Any) -> None:
    """Stands for a callback."""
