"""What the platform knows of each worker: when it was heard, what it still has to be told, whether it may
take jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from .job_queue import JobQueue
from .pulse import Pulse


class Phase(StrEnum):
    """A worker's place in its life."""

    BOOTING = "booting"
    SERVING = "serving"
    DRAINING = "draining"
    STOPPING = "stopping"
    DEAD = "dead"


@dataclass(eq=False, kw_only=True)
class Worker:
    """One worker, by its pod id.

    Attributes:
        stops: job ids that the next job-stop answer names.
        stopped: job id to the time it was last put into `stops`, for as long as pings may still name it.
        wake: fires when a held poll of this worker should look again.
    """

    id: str
    phase: Phase = Phase.BOOTING
    stops: list[str] = field(default_factory=list)
    stopped: dict[str, float] = field(default_factory=dict)
    wake: Pulse = field(default_factory=Pulse)


class WorkerRegistry:
    """All workers that were started here or have called.

    Attributes:
        on_ready: called with a worker id at its first job-take.
        on_drained: called with a worker id when a draining worker holds no job any more.
    """

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._workers: dict[str, Worker] = {}
        self.on_ready: Callable[[str], None] = _ignore
        self.on_drained: Callable[[str], None] = _ignore
        queue.on_stop = self.stop_job
        queue.on_queued = self.wake_all

    def get(self, worker_id: str) -> Worker:
        """The worker with this id; one that calls unannounced (started by hand) is welcome."""
        worker = self._workers.get(worker_id)
        if worker is None:
            worker = self._workers[worker_id] = Worker(id=worker_id)
        return worker

    def started(self, worker_id: str) -> None:
        """A process for this worker was started: whatever its predecessor was told is void."""
        self._workers[worker_id] = Worker(id=worker_id)

    def heard_take(self, worker: Worker) -> None:
        """A job-take arrived: the first one is how a queue worker says that it is ready."""
        if worker.phase in (Phase.BOOTING, Phase.DEAD):
            worker.phase = Phase.SERVING
            self.on_ready(worker.id)

    def heard_ping(self, worker: Worker, job_ids: list[str]) -> None:
        """A ping arrived, naming the jobs that the worker believes it has."""
        now = self._queue.clock()
        self._queue.seen(worker.id, job_ids)
        worker.stopped = {job_id: at for job_id, at in worker.stopped.items() if job_id in job_ids}
        again = self._queue.policy.stop_again_s
        if again:
            for job_id in [job_id for job_id, at in worker.stopped.items() if now - at >= again]:
                self.stop_job(worker.id, job_id)

    def stop_job(self, worker_id: str, job_id: str) -> None:
        """Tell a worker, at its next or its held job-stop poll, to drop a job."""
        worker = self.get(worker_id)
        worker.stopped[job_id] = self._queue.clock()
        if job_id not in worker.stops:
            worker.stops.append(job_id)
        worker.wake.fire()

    def handed(self, worker: Worker, job_ids: Iterable[str]) -> None:
        """Jobs were handed out: an unsent order to drop an earlier attempt of one would hit the new
        attempt.
        """
        for job_id in job_ids:
            worker.stopped.pop(job_id, None)
            if job_id in worker.stops:
                worker.stops.remove(job_id)

    def drain(self, worker_id: str) -> None:
        """Hand this worker no more jobs; `on_drained` says when it holds none."""
        worker = self.get(worker_id)
        if worker.phase in (Phase.BOOTING, Phase.SERVING):
            worker.phase = Phase.DRAINING
        self.check_drained(worker_id)

    def check_drained(self, worker_id: str) -> None:
        """Call after each end of a job."""
        worker = self._workers.get(worker_id)
        if worker is not None and worker.phase is Phase.DRAINING and not self._queue.running(worker_id):
            worker.phase = Phase.STOPPING
            self.on_drained(worker_id)

    def stopping(self, worker_id: str) -> None:
        """This worker was told to end: release its held polls, so that the SDK can (it waits for both)."""
        worker = self.get(worker_id)
        worker.phase = Phase.STOPPING
        worker.wake.fire()

    def gone(self, worker_id: str) -> None:
        """This worker has ended, or is unfit; its jobs are lost if the platform looks at exits."""
        self.get(worker_id).phase = Phase.DEAD
        if self._queue.policy.lost_on_exit:
            self._queue.worker_gone(worker_id)

    def count(self) -> int:
        """How many workers there are, dead ones not counted."""
        return sum(worker.phase is not Phase.DEAD for worker in self._workers.values())

    def wake_all(self) -> None:
        """Let every held job-take look at the queue."""
        for worker in list(self._workers.values()):
            worker.wake.fire()

    def totals(self) -> dict[str, int]:
        """The `workers` object of /health."""
        busy = self._queue.busy_workers()
        alive = [
            worker for worker in self._workers.values() if worker.phase not in (Phase.DEAD, Phase.STOPPING)
        ]
        booting = sum(worker.phase is Phase.BOOTING for worker in alive)
        running = sum(worker.id in busy for worker in alive if worker.phase is not Phase.BOOTING)
        in_service = len(alive) - booting
        return {
            "idle": in_service - running,
            "initializing": booting,
            "ready": in_service + (booting if self._queue.policy.ready_while_booting else 0),
            "running": running,
            "throttled": 0,
            "unhealthy": sum(worker.phase is Phase.DEAD for worker in self._workers.values()),
        }


def _ignore(*_: Any) -> None:
    """The callback of a registry that nobody listens to."""
