"""How jobs come in: the SDK's JobScaler without its waits, and without its way of losing jobs.

What it changes, and why (runpod 1.12.0, rp_scale.py; figures from runpod-sdk.md section 2):

* A job starts when it arrives. The stock loop looks at its queue every 0.1 s: 45 to 93 ms a job.
* A freed slot is filled at once, and a waiting job counts once. The stock loop counts it twice and then
  sleeps 1 s: a burst of 16 at concurrency 8 needs more than 2 s.
* Nothing is taken before the engine is ready.
* Stopping ends the long polls, and runs a job that arrives at that moment. The stock loop waits up to 90
  s for each poll and drops such a job.
* A stop signal finds every job: stock ones in the queue cannot be stopped.
* An answer without jobs that comes back at once, or an error, is not asked for again in a tight loop.

Everything else (session, fetching, handling, bookkeeping, stop channel) is the SDK's own code.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    class _Scaler:
        """The parts of JobScaler that this mixin calls."""

        config: dict[str, Any]
        current_concurrency: int
        jobs_queue: asyncio.Queue[dict[str, Any]]
        jobs_tasks: dict[str, asyncio.Task[None]]
        job_progress: Any
        jobs_fetcher: Any
        jobs_fetcher_timeout: float
        _shutdown_event: asyncio.Event

        def __init__(self, config: dict[str, Any]) -> None: ...
        async def run(self) -> None: ...
        async def set_scale(self) -> None: ...
        async def handle_job(self, session: Any, job: dict[str, Any]) -> None: ...
        async def monitor_stop_signals(self, session: Any) -> None: ...
else:
    _Scaler = object

LINGER_SECONDS = 0.25
"""How long a stop leaves the running poll open, for a job that is on its way already."""
ARRIVAL_TURNS = 30
"""How many turns of the loop an answer that has arrived may need to be read, at least twice over."""
HELD_SECONDS = 1.0
"""A poll that took this long was held by the platform; asking again at once is what it expects."""
FIRST_PAUSE_SECONDS = 0.05
MAX_IDLE_PAUSE_SECONDS = 1.0
MAX_ERROR_PAUSE_SECONDS = 5.0

logger = logging.getLogger(__name__)


class PromptIntake(_Scaler):
    """A mixin to stand before the SDK's JobScaler. The SDK's config may hold `ready`, a coroutine
    function that is awaited before the first job is taken."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._freed = asyncio.Event()
        self._drained = asyncio.Event()
        self._intake_ended = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """The SDK's loop; returns when a stop was asked for and the last job has ended."""
        self._loop = asyncio.get_running_loop()
        await super().run()

    def kill_worker(self) -> None:
        """Ask for a stop. Called from signal handlers too, which do not wake the loop by themselves."""
        if self._loop is None:
            self._shutdown_event.set()
        else:
            self._loop.call_soon_threadsafe(self._shutdown_event.set)

    async def get_jobs(self, session: Any) -> None:
        """Take jobs whenever slots are free, until the stop."""
        try:
            await self.set_scale()
            if await self._engine_ready():
                await self._take_until_stopped(session)
        finally:
            self._intake_ended.set()

    async def run_jobs(self, session: Any) -> None:
        """Wait for the stop and for the last job. The jobs themselves are begun by `get_jobs`."""
        await self._shutdown_event.wait()
        await self._intake_ended.wait()
        while self._running:
            await asyncio.wait(set(self._running))
        self._drained.set()

    async def monitor_stop_signals(self, session: Any) -> None:
        """The SDK's own monitor, ended when nothing is left to stop."""
        monitor = asyncio.ensure_future(super().monitor_stop_signals(session))
        drained = asyncio.ensure_future(self._drained.wait())
        try:
            await asyncio.wait({monitor, drained}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            monitor.cancel()
            drained.cancel()
        await asyncio.wait({monitor, drained})

    async def _engine_ready(self) -> bool:
        ready = self.config.get("ready")
        if ready is None:
            return True
        try:
            await self._unless_stopped(ready())
        except Exception as error:
            # Whoever owns the engine acts on its failure and stops this loop; here it only means: take
            # nothing.
            logger.debug("no jobs are taken: %r", error)
            return False
        return True

    async def _take_until_stopped(self, session: Any) -> None:
        pause = 0.0
        while not self._shutdown_event.is_set():
            free = self.current_concurrency - len(self._running)
            if free <= 0:
                self._freed.clear()
                await self._unless_stopped(self._freed.wait())
                continue
            asked_at = time.monotonic()
            try:
                jobs = await self._take(session, free)
                longest = MAX_IDLE_PAUSE_SECONDS
            except Exception as error:
                # Any failure to take jobs, whatever its kind, must not end the loop that takes them.
                logger.warning("taking jobs failed: %s (%s)", type(error).__name__, _status_of(error))
                jobs, longest = [], MAX_ERROR_PAUSE_SECONDS
            for job in jobs:
                self._begin(session, job)
            if jobs or time.monotonic() - asked_at >= HELD_SECONDS:
                pause = 0.0
            else:
                pause = min(max(2 * pause, FIRST_PAUSE_SECONDS), longest)
                await self._unless_stopped(asyncio.sleep(pause))

    async def _take(self, session: Any, count: int) -> list[dict[str, Any]]:
        """The SDK's fetch; empty for no jobs, a poll's end or a stop."""
        fetch = asyncio.wait_for(self.jobs_fetcher(session, count), timeout=self.jobs_fetcher_timeout)
        try:
            return await self._unless_stopped(fetch, linger_seconds=LINGER_SECONDS) or []
        except TimeoutError:
            return []

    def _begin(self, session: Any, job: dict[str, Any]) -> None:
        if not isinstance(job, dict) or not isinstance(job.get("id"), str) or "input" not in job:
            logger.error("the platform sent a job without id or input; it is left alone")
            return
        job.pop("self", None)  # the SDK makes keyword arguments of a job's keys
        if (run := self.jobs_tasks.get(job["id"])) is not None:
            if run.cancelling():
                # stopped, perhaps because the platform took it back: what it hands over now is a new run
                run.add_done_callback(lambda _: self._begin(session, job))
                return
            logger.warning("the platform sent a job again that is running; one run answers both")
            return
        # Through the SDK's queue, because its handle_job() settles accounts with it.
        self.jobs_queue.put_nowait(job)
        self.jobs_queue.get_nowait()
        self.job_progress.add(job)
        task = asyncio.get_running_loop().create_task(self.handle_job(session, job))
        self.jobs_tasks[job["id"]] = task
        self._running.add(task)
        task.add_done_callback(self._job_ended)

    def _job_ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()
        if not task.cancelled():
            task.exception()  # marks it as seen; the SDK has logged it

    async def _unless_stopped(self, awaitable: Any, linger_seconds: float = 0.0) -> Any:
        """Await it, but not longer than `linger_seconds` beyond a stop: then its result where it came
        after all, or None."""
        work = asyncio.ensure_future(awaitable)
        stop = asyncio.ensure_future(self._shutdown_event.wait())
        try:
            await asyncio.wait({work, stop}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await asyncio.wait({work}, timeout=linger_seconds)
                # a busy loop's timer can be first although the answer has arrived, and a job would be lost
                for _ in range(ARRIVAL_TURNS if linger_seconds else 0):
                    if work.done():
                        break
                    await asyncio.sleep(0)
        finally:
            stop.cancel()
            work.cancel()
        await asyncio.wait({work})
        return None if work.cancelled() else work.result()


def _status_of(error: Exception) -> str:
    """An HTTP error's status; never its text, which holds the platform's URL."""
    return str(getattr(error, "status", "no answer"))
