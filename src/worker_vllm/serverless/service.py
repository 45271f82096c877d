"""The worker in service: everything that lives in the SDK's job loop, and the two ways out of it.

The SDK has no hook for "the loop runs now". But it calls `concurrency_modifier` in that loop, before the
first job is taken (runpod rp_scale.py, JobScaler.set_scale), so that is where the engine's loop-bound
half is brought up and the watch begins.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Protocol

from worker_vllm.engine.record import JobRecord
from worker_vllm.errors import EngineDeadError, RetryableError, ShuttingDownError, StartupFailure, WorkerError
from worker_vllm.phases import Phases, process_age
from worker_vllm.serverless import health
from worker_vllm.serverless.cancellation import Jobs
from worker_vllm.serverless.handler import Engine
from worker_vllm.serverless.sign import Sign

FAIL_SECONDS = 4.0
"""How long failed jobs may take to have their results accepted before the process goes."""
LEAVE_SECONDS = 9.0
"""How long leaving a dead engine may take altogether, clean-up included."""
STOP_SECONDS = 15.0
"""How long the engine's clean-up may take after the last job of an orderly stop."""

logger = logging.getLogger(__name__)


class Host(Protocol):
    """What the service needs of the engine's owner (engine.lifecycle.EngineHost)."""

    @property
    def errored(self) -> bool:
        """Whether the engine is dead."""

    @property
    def unfinished_requests(self) -> int:
        """Requests that the engine holds."""

    @property
    def step_count(self) -> int:
        """Steps that the engine has made."""

    def has_begun(self, record: JobRecord) -> bool:
        """See `Serving.has_begun`."""

    async def cut_short(self, record: JobRecord) -> bool:
        """See `Serving.cut_short`."""

    async def ready(self) -> None:
        """Bring up what is bound to the running loop. Raises WorkerError."""

    async def close(self) -> None:
        """Take that down again, in the same loop. Repeatable."""


class Service:
    """One worker's service, from the job loop's start to its end.

    Args:
        host: the engine's owner; it is started already and is stopped by whoever made it.
        capacity: jobs taken at once. Constant: a changing figure makes the SDK wait until no job is left.
        grace_seconds: how long jobs may go on after SIGTERM.
        stall_seconds: an engine that holds requests and makes no step for so long counts as dead.
        request_timeout_seconds: how long a job may take that says nothing itself; None means no limit.
        first_token_seconds: how long it may take to its first token; None means no limit of its own.
        errors_as_body: OPENAI_ERRORS=body.
        raw_openai_output: RAW_OPENAI_OUTPUT.
        sign: is told of the service's states.
        exit_later: see `health.exit_later`; tests replace it.
    """

    def __init__(
        self,
        host: Host,
        native: Engine,
        openai: Engine,
        *,
        capacity: int,
        grace_seconds: float,
        stall_seconds: float = 300.0,
        request_timeout_seconds: float | None = None,
        first_token_seconds: float | None = None,
        errors_as_body: bool = False,
        raw_openai_output: bool = True,
        phases: Phases | None = None,
        sign: Sign | None = None,
        exit_later: Callable[[float, Callable[[], int]], threading.Timer] = health.exit_later,
    ) -> None:
        self.jobs = Jobs()
        self.native = native
        self.openai = openai
        self.request_timeout_seconds = request_timeout_seconds
        self.first_token_seconds = first_token_seconds
        self.errors_as_body = errors_as_body
        self.raw_openai_output = raw_openai_output
        self.exit_code = health.EXIT_STOPPED
        self._host = host
        self._capacity = capacity
        self._grace_seconds = grace_seconds
        self._exit_later = exit_later
        self._progress = health.Progress(
            lambda: host.unfinished_requests > 0, lambda: host.step_count, stall_seconds
        )
        self._phases = phases or Phases()
        self._sign = sign or Sign(None)
        self._ready: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._stop_signals = 0
        self._leaving = False
        self._last_resort: threading.Timer | None = None
        self.startup_failure: StartupFailure | None = None

    def concurrency(self, _current: int) -> int:
        """The SDK's `concurrency_modifier`: the constant capacity. The first call enters the loop."""
        self._enter()
        return self._capacity

    async def ready(self) -> None:
        """Wait until the engine takes requests. Raises what kept it from that."""
        await asyncio.shield(self._enter())

    def report(self, error: WorkerError) -> None:
        """Hear of a job's fatal error: the engine is gone, and so is the worker soon."""
        self._leave(health.EXIT_ENGINE_DEAD, error)

    def has_begun(self, record: JobRecord) -> bool:
        """Whether the engine has made the job's first token."""
        return self._host.has_begun(record)

    async def cut_short(self, record: JobRecord) -> bool:
        """Let the job's engine requests end with what they have so far; False where there are none."""
        return await self._host.cut_short(record)

    def ended(self) -> None:
        """The process has cleaned up and ends by itself: call off the last resort."""
        if self._last_resort is not None:
            self._last_resort.cancel()

    def _enter(self) -> asyncio.Task[None]:
        if self._ready is None:
            loop = asyncio.get_running_loop()
            self._ready = self._keep(self._make_ready())
            self._keep(health.watch(self._engine_is_gone, self._engine_gone, self._tick))
            self._keep(self._close_with_the_loop())
            self._chain_signals(loop)
        return self._ready

    def _engine_is_gone(self) -> bool:
        return self._host.errored or self._progress.stalled

    def _engine_gone(self) -> None:
        how = "hangs" if self._progress.stalled else "died"
        self._leave(
            health.EXIT_ENGINE_DEAD, EngineDeadError(f"the engine {how}; this worker is leaving service")
        )

    def _tick(self, seconds: float) -> None:
        self.jobs.grow_older(seconds)
        self._progress.tick(seconds)
        self._sign.beat()

    async def _make_ready(self) -> None:
        try:
            with self._phases.phase("prepare the app"):
                await self._host.ready()
        except WorkerError as error:
            if isinstance(error, StartupFailure):
                self.startup_failure = error
                self._leave(error.exit_code, RetryableError("the worker could not start"))
            else:
                self._leave(health.EXIT_ENGINE_DEAD, error)
            raise
        self._sign.serving()
        logger.info("in service after %.1f s; up to %d jobs at once", process_age(), self._capacity)

    async def _close_with_the_loop(self) -> None:
        """The SDK's loop ends without telling anybody; but `asyncio.run` cancels what still runs in it
        first."""
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self._host.close()

    def _keep(self, coroutine: Any) -> asyncio.Task[None]:
        """A task that is referenced, and whose unexpected end takes the worker out of service."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        if not isinstance(error, WorkerError):  # those have been acted on where they were raised
            logger.error("a task of the worker failed", exc_info=error)
            self._leave(health.EXIT_ENGINE_DEAD, EngineDeadError("the worker failed"))

    def _chain_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear SIGTERM and SIGINT beside the SDK, whose handlers (installed just before the loop began)
        stop intake and then wait for the running jobs without end."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            previous = signal.getsignal(number)

            def hear(signum: int, frame: FrameType | None, previous: Any = previous) -> None:
                with suppress(RuntimeError):  # the loop has just been closed, and the process is ending
                    if callable(previous):
                        previous(signum, frame)
                    loop.call_soon_threadsafe(self._stop)

            signal.signal(number, hear)

    def _stop(self) -> None:
        """A stop signal: the first lets running jobs finish for the grace period, the next does not wait."""
        if self._leaving:
            return
        self._stop_signals += 1
        if self._stop_signals == 1:
            self._sign.leaving("told to stop")
            logger.info(
                "stopping: no new jobs; %d running may take %g s", len(self.jobs), self._grace_seconds
            )
            self._be_cut_off_after(self._grace_seconds)
            asyncio.get_running_loop().call_later(self._grace_seconds, self._give_up)
        else:
            if self._stop_signals == 2:
                self._be_cut_off_after(0)
            self._give_up()

    def _be_cut_off_after(self, grace_seconds: float) -> None:
        """Have an end to the stop, whatever hangs."""
        self._resort_to_exit(
            grace_seconds + FAIL_SECONDS + STOP_SECONDS,
            # the stock SDK waits for its long polls long after the last job
            lambda: health.EXIT_CUT_OFF if len(self.jobs) else health.EXIT_STOPPED,
        )

    def _give_up(self) -> None:
        if len(self.jobs):
            logger.warning("stopping: %d jobs are failed; they can be sent again", len(self.jobs))
        self.jobs.fail_all(ShuttingDownError("the worker is shutting down; send the job again"))

    def _leave(self, exit_code: int, error: WorkerError) -> None:
        """The engine is of no use any more: fail every job, take no other, and go."""
        if self._leaving:
            return
        self._leaving = True
        self.exit_code = exit_code
        self._sign.leaving(error.message)
        logger.error("leaving service with exit code %d: %s", exit_code, error.message)
        self._resort_to_exit(LEAVE_SECONDS, lambda: exit_code)
        self.jobs.fail_all(error)
        # Stops intake through the SDK's own handler, which exists for this. Jobs are failed before that,
        # so that nothing is left to drain but their results.
        signal.raise_signal(signal.SIGTERM)
        task = asyncio.get_running_loop().create_task(self._exit_when_told(exit_code))
        self._tasks.add(task)

    async def _exit_when_told(self, exit_code: int) -> None:
        """Go once the jobs' results are accepted or late. The SDK's start() may return by then, which
        ends this task with the loop; where it waits for its long polls, nobody has to wait with it."""
        try:
            await asyncio.wait_for(self.jobs.wait_until_empty(), FAIL_SECONDS)
        except TimeoutError:
            logger.error("results of %d jobs were not accepted in time", len(self.jobs))
        await asyncio.sleep(1.0)
        self._resort_to_exit(0, lambda: exit_code)

    def _resort_to_exit(self, seconds: float, exit_code: Callable[[], int]) -> None:
        if self._last_resort is not None:
            self._last_resort.cancel()
        self._last_resort = self._exit_later(seconds, exit_code)
