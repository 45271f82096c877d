"""Tie each job's stream to the job's end, however that comes.

A job can end in five ways: its stream ends; its stream fails; the SDK cancels its task (a client's
cancel, a platform time-out); the worker gives it up (deadline, shutdown, engine death); or the SDK's task
ends while the handler is suspended at a `yield`. In the last case the SDK does not close the generator
(seen in 1.10 and 1.12), and nothing but the end of the SDK's task tells us. So a lease listens to the
task too, and closes the stream from there.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from worker_vllm.errors import WorkerError

CUT_SECONDS = 0.25
"""How long a job whose time has run out may take to hand over what it has so far: less than the handler
leaves to the platform's own limit."""

ABANDON_SECONDS = 0.15
FAREWELL_SECONDS = 1.0
"""How long the post of a chunk may go on once its job has failed, and how long that of the stream's last
words may take: the platform may hold them, and the job's result comes after them."""

CutShort = Callable[[], Awaitable[bool] | None]
"""Lets a job's stream end soon with what it has so far; says False, or None at once, where it cannot."""

current_lease: ContextVar[JobLease | None] = ContextVar("current_lease", default=None)
"""Of the job whose task is running."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Limit:
    """A limit of a job's time.

    Attributes:
        seconds: the job's age at which it fails with `late`,
        is_met: unless this is true by then.
    """

    seconds: float
    late: WorkerError
    is_met: Callable[[], bool] = lambda: False


class Jobs:
    """Every job in this worker, from its handler's start to the end of the SDK's task, which includes the
    delivery of its result. It belongs to the job loop.
    """

    def __init__(self) -> None:
        self._leases: set[JobLease] = set()
        self._closing: set[asyncio.Task[None]] = set()
        self._refusal: WorkerError | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._leases)

    def open(
        self,
        stream: AsyncGenerator[Any, None],
        *,
        limits: Sequence[Limit] = (),
        on_release: Callable[[], None] = lambda: None,
        cut_short: CutShort = lambda: None,
    ) -> JobLease:
        """A lease on `stream` for the job whose task is running now.

        Args:
            stream: the job's chunks; nobody else reads or closes it.
            limits: of the job's time.
            on_release: called once, when the job has ended for the worker; delivery may still go on.
            cut_short: called when a limit is reached.
        """
        lease = JobLease(self, stream, limits, on_release, cut_short)
        current_lease.set(lease)  # in the job's own task, so nobody has to take it back
        if self._refusal is not None:
            lease.fail(self._refusal)
        return lease

    def fail_all(self, error: WorkerError) -> None:
        """End every job with `error`, and every later one at once. The first call's error stays."""
        self._refusal = self._refusal or error
        for lease in tuple(self._leases):
            lease.fail(self._refusal)

    def grow_older(self, seconds: float) -> None:
        """Count `seconds` towards every job's limit. Called at each tick with the time that really ran: a
        paused container's clock goes on, its jobs' should not."""
        for lease in tuple(self._leases):
            lease.grow_older(seconds)

    async def wait_until_empty(self) -> None:
        """Wait until no job is left, deliveries included."""
        while self._leases or self._closing:
            if self._leases:
                await self._empty.wait()
            if self._closing:
                await asyncio.wait(set(self._closing))

    def _add(self, lease: JobLease) -> None:
        self._leases.add(lease)
        self._empty.clear()

    def _remove(self, lease: JobLease) -> None:
        self._leases.discard(lease)
        if not self._leases:
            self._empty.set()

    def _close_later(self, stream: AsyncGenerator[Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(_close(stream))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class JobLease:
    """One job's stream, read by the handler in the SDK's task for that job.

    `next` reads it; `posting` marks the time at a `yield`; `fail` ends the job from elsewhere in the
    loop; `release` closes what is left and is called by whichever end comes first.
    """

    def __init__(
        self,
        jobs: Jobs,
        stream: AsyncGenerator[Any, None],
        limits: Sequence[Limit],
        on_release: Callable[[], None],
        cut_short: CutShort,
    ) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a job's handler runs in a task")
        self._jobs = jobs
        self._stream = stream
        self._on_release = on_release
        self._task = task
        self._failure: WorkerError | None = None
        self._interrupting = False
        self._posting = False
        self._exhausted = False
        self._released = False
        self._limits = limits
        self._age_seconds = 0.0
        self._cut_short = cut_short
        self._late: WorkerError | None = None
        self._ended = asyncio.Event()
        self._patience: asyncio.Timeout | None = None
        self._cutting: asyncio.Task[None] | None = None
        jobs._add(self)
        task.add_done_callback(self._task_done)

    @property
    def failure(self) -> WorkerError | None:
        """What `fail` was called with, if it was."""
        return self._failure

    async def next(self) -> Any:
        """The stream's next chunk.

        Raises StopAsyncIteration at the stream's end, whatever the stream raises, and the error given to
        `fail` or by a limit. CancelledError comes through only where it is not of our making.
        """
        if self._failure is not None:
            self._settle_interruption()
            raise self._failure
        try:
            return await anext(self._stream)
        except BaseException as error:
            self._exhausted = True
            self._ended.set()
            if self._late is not None and self._failure is None and _ends_early(error):
                self._failure = self._late
                raise self._failure from error
            if self._failure is None or not self._settle_interruption():
                raise
            if isinstance(error, (asyncio.CancelledError, WorkerError)):
                raise self._failure from None
            raise self._failure from error

    @contextmanager
    def posting(self) -> Iterator[None]:
        """The time in which the handler is suspended at a `yield` and the SDK posts the chunk: cancelling
        the task now would end the job without a result, so `fail` waits for the handler's return (see
        `offering`)."""
        self._posting = True
        try:
            yield
        finally:
            self._posting = False

    @asynccontextmanager
    async def offering(self) -> AsyncIterator[None]:
        """The time in which a chunk of the job is posted. Raises TimeoutError where it goes on although the
        job has failed."""
        async with asyncio.timeout(None if self._failure is None else FAREWELL_SECONDS) as self._patience:
            yield

    def fail(self, error: WorkerError) -> None:
        """End the job with `error` as soon as its handler runs again; at once where it waits for the engine.
        Without effect on a job that has failed or ended already."""
        if self._failure is not None or self._released:
            return
        self._failure = error
        if self._posting:
            self._lose_patience()
        elif self._task is not asyncio.current_task():
            self._interrupting = True
            self._task.cancel()

    def grow_older(self, seconds: float) -> None:
        """See `Jobs.grow_older`."""
        self._age_seconds += seconds
        for limit in self._limits:
            if self._age_seconds >= limit.seconds and not limit.is_met():
                self._expire(limit.late)

    def release(self) -> None:
        """The job has ended for the worker: close the stream where it has not ended by itself. Repeatable."""
        if self._released:
            return
        self._released = True
        if not self._exhausted:
            self._jobs._close_later(self._stream)
        self._on_release()

    def _lose_patience(self) -> None:
        if self._patience is not None:
            with suppress(RuntimeError):  # it has ended
                self._patience.reschedule(asyncio.get_running_loop().time() + ABANDON_SECONDS)

    def _expire(self, late: WorkerError) -> None:
        if self._late is not None or self._failure is not None or self._released:
            return
        if (cut := self._cut_short()) is None:
            self.fail(late)
        else:
            self._late = late
            self._cutting = asyncio.get_running_loop().create_task(self._hand_over(cut, late))

    async def _hand_over(self, cut: Awaitable[bool], late: WorkerError) -> None:
        """Let what the job has so far come out of its stream, and fail it then; soon, whatever happens."""
        try:
            async with asyncio.timeout(CUT_SECONDS):
                if await cut:
                    await self._ended.wait()
        except TimeoutError:
            logger.debug("a job's stream did not end within %s s of its time's end", CUT_SECONDS)
        except Exception:
            logger.exception("a job could not be cut short")
        self.fail(late)

    def _settle_interruption(self) -> bool:
        """Take back our own cancellation; False where the SDK has cancelled the task as well."""
        if not self._interrupting:
            return True
        self._interrupting = False
        return self._task.uncancel() == 0

    def _task_done(self, _: asyncio.Task[Any]) -> None:
        self.release()
        self._jobs._remove(self)


def _ends_early(error: BaseException) -> bool:
    """Whether a stream that was cut short ended for that reason: not for the engine's death or the SDK's
    cancel."""
    return not isinstance(error, asyncio.CancelledError) and not getattr(error, "fatal", False)


async def _close(stream: AsyncGenerator[Any, None]) -> None:
    try:
        await stream.aclose()
    except Exception:
        # Nobody waits for this stream any more; its job has ended. What went wrong while it closed is
        # worth a look.
        logger.exception("a job's stream failed while it was closed")
