"""Keeps N workers running: waits for their first job-take, starts the dead again, recycles, ends them all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from .server import Platform
from .worker_env import worker_environment
from .worker_process import WorkerProcess

logger = logging.getLogger(__name__)

KILL_WAIT_S = 10.0


class WorkerFailedError(Exception):
    """A worker that never came into service, or was given up.

    Attributes:
        exit_code: the worker's; 1 where it ended with 0 without having been ready.
        reason: the last line it wrote, or how it ended when it wrote none.
    """

    def __init__(self, worker_id: str, exit_code: int, last_line: str) -> None:
        self.exit_code = exit_code or 1
        self.reason = last_line or f"{worker_id} ended with exit code {exit_code} before it was ready"
        super().__init__(self.reason)


@dataclass(frozen=True)
class WorkerExit:
    """How a worker's process ended.

    Attributes:
        code: as a shell would give it.
        left: command lines of the processes that it left behind.
    """

    worker_id: str
    code: int
    left: tuple[str, ...]


class WorkerPool:
    """The platform's own workers. Enter it inside a running `Platform`; leaving it ends them all.

    Args:
        platform: where they work.
        command: what a worker executes.
        environment: passed on to each worker, beside what RunPod injects.
        count: how many.
        on_line: called with worker id and line for all they write.
        hub_form: wire them as the Hub's test runner does.

    Attributes:
        exits: how each process ended that has, in order.
        failed: gets a `WorkerFailedError` as its exception when a worker cannot start, or all were given up.
    """

    def __init__(
        self,
        platform: Platform,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        count: int = 1,
        on_line: Callable[[str, str], None],
        hub_form: bool = False,
    ) -> None:
        self._platform = platform
        self._command = tuple(command)
        self._environment = dict(environment)
        self._on_line = on_line
        self._hub_form = hub_form
        self._ids = [f"worker-{index}" for index in range(count)]
        self._ready = {worker_id: asyncio.Event() for worker_id in self._ids}
        self._ready_at: dict[str, float] = {}
        self._processes: dict[str, WorkerProcess] = {}
        self._given_up: set[str] = set()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._recycles: set[asyncio.Task[None]] = set()
        self._closing = False
        self.exits: list[WorkerExit] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> WorkerPool:
        self._platform.registry.on_ready = self._worker_ready
        self._platform.registry.on_drained = self._recycle
        self._tasks = {worker_id: asyncio.create_task(self._supervise(worker_id)) for worker_id in self._ids}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.shield(self.stop())

    def pid(self, worker_id: str) -> int | None:
        """The process id of a worker, if it has a process."""
        process = self._processes.get(worker_id)
        return process.pid if process is not None else None

    async def ready(self) -> None:
        """Wait for the first job-take of every worker.

        Raises:
            WorkerFailedError: one of them cannot start.
        """
        taken = asyncio.gather(*(event.wait() for event in self._ready.values()))
        try:
            waited: list[asyncio.Future[Any]] = [taken, self.failed]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if self.failed.done():
                await self.failed
        finally:
            taken.cancel()
            await asyncio.gather(taken, return_exceptions=True)

    async def stop(self) -> None:
        """End every worker: SIGTERM, held polls released, SIGKILL after the grace. May be called again."""
        self._closing = True
        try:
            await asyncio.gather(*(self._end(worker_id) for worker_id in self._ids))
        finally:
            for task in (*self._tasks.values(), *self._recycles):
                task.cancel()
            await asyncio.gather(*self._tasks.values(), *self._recycles, return_exceptions=True)
            if not self.failed.done():
                self.failed.cancel()
            elif not self.failed.cancelled():
                self.failed.exception()  # seen: it is not to be reported again when this object goes

    def kill(self) -> None:
        """End every worker at once; for the one who asks a second time."""
        self._closing = True
        for process in self._processes.values():
            process.kill()

    def _worker_ready(self, worker_id: str) -> None:
        if worker_id in self._ready:
            self._ready_at[worker_id] = asyncio.get_running_loop().time()
            self._ready[worker_id].set()

    async def _supervise(self, worker_id: str) -> None:
        """Run one worker again and again, until it is given up."""
        policy, deaths = self._platform.policy, 0
        while not self._closing:
            process = self._new_process(worker_id)
            code = await process.run()
            self.exits.append(WorkerExit(worker_id, code, process.left))
            self._platform.registry.gone(worker_id)
            if self._closing:
                return
            if not self._ready[worker_id].is_set():
                self._fail(WorkerFailedError(worker_id, code, process.last_line))
                return
            ready_at = self._ready_at.get(worker_id)
            served_s = 0.0 if ready_at is None else asyncio.get_running_loop().time() - ready_at
            if code == 0 and ready_at is not None:
                deaths = 0  # it was told to end, or ends after each job by its own choice
                continue
            deaths = 1 if served_s >= policy.stable_after_s else deaths + 1
            if deaths > policy.restart_limit:
                self._give_up(WorkerFailedError(worker_id, code, process.last_line), worker_id)
                return
            delay_s = min(policy.restart_delay_s * 2 ** (deaths - 1), policy.restart_max_delay_s)
            logger.warning(
                "%s ended with exit code %d; starting it again in %.1f s", worker_id, code, delay_s
            )
            await asyncio.sleep(delay_s)

    def _new_process(self, worker_id: str) -> WorkerProcess:
        platform = self._platform
        environment = worker_environment(
            self._environment,
            url=platform.url,
            worker_id=worker_id,
            worker_key=platform.worker_key,
            policy=platform.policy,
            hub_form=self._hub_form,
        )
        process = WorkerProcess(self._command, environment, lambda line: self._on_line(worker_id, line))
        self._ready_at.pop(worker_id, None)
        platform.registry.started(worker_id)
        self._processes[worker_id] = process
        return process

    def _recycle(self, worker_id: str) -> None:
        """A worker asked to be stopped (stopPod) and has no job left: end it; the supervisor starts it
        again.
        """
        if worker_id in self._processes and not self._closing:
            task = asyncio.create_task(self._end(worker_id))
            self._recycles.add(task)
            task.add_done_callback(self._recycles.discard)

    async def _end(self, worker_id: str) -> None:
        """End one worker's present process; returns when it has ended."""
        process, task = self._processes.get(worker_id), self._tasks.get(worker_id)
        if process is None or task is None or task.done():
            return
        process.terminate()
        # The SDK leaves only when both of its long polls have come back.
        self._platform.registry.stopping(worker_id)
        if not await process.wait_ended(self._platform.policy.worker_grace_s):
            logger.warning(
                "%s did not end within %g s; killing it", worker_id, self._platform.policy.worker_grace_s
            )
            process.kill()
            await process.wait_ended(KILL_WAIT_S)

    def _fail(self, error: WorkerFailedError) -> None:
        if not self.failed.done():
            self.failed.set_exception(error)

    def _give_up(self, error: WorkerFailedError, worker_id: str) -> None:
        logger.error("%s is given up after too many deaths in a row: %s", worker_id, error.reason)
        self._given_up.add(worker_id)
        if self._given_up == set(self._ids):
            self._fail(error)
