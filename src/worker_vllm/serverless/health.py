"""When the worker has to leave service, and the way out of the process.

Exit codes (also in `worker-vllm run --help`):

    0   told to stop; every job has ended
    2   bad configuration                       (errors.ConfigurationError)
    3   the engine could not be built           (errors.StartupFailure)
    4   the engine died while serving
    5   stopping took too long and was cut off
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path

from worker_vllm import scratch

EXIT_STOPPED = 0
EXIT_ENGINE_DEAD = 4
EXIT_CUT_OFF = 5

WATCH_SECONDS = 0.25
"""How often the engine is looked at. A job's own exception usually tells sooner; the watch is for the
engine that dies while nobody asks it for anything."""

_PR_SET_CHILD_SUBREAPER = 36
_RESOURCE_TRACKER = b"multiprocessing.resource_tracker"

logger = logging.getLogger(__name__)


class Progress:
    """Whether the engine gets on with what it holds. vLLM reports a process that hangs as healthy.

    Args:
        is_busy: whether requests are unfinished.
        step_count: how many steps the engine has made.
        limit_seconds: busy for so long without a step counts as stalled.
    """

    def __init__(
        self, is_busy: Callable[[], bool], step_count: Callable[[], int], limit_seconds: float
    ) -> None:
        self._is_busy = is_busy
        self._step_count = step_count
        self._limit_seconds = limit_seconds
        self._last_count: int | None = None
        self._idle_seconds = 0.0

    @property
    def stalled(self) -> bool:
        """Whether the limit is reached."""
        return self._idle_seconds >= self._limit_seconds

    def tick(self, seconds: float) -> None:
        """Look again; `seconds` have passed in which the engine could have run."""
        count = self._step_count()
        if count != self._last_count or not self._is_busy():
            self._idle_seconds = 0.0
        else:
            self._idle_seconds += seconds
        self._last_count = count


async def watch(
    is_dead: Callable[[], bool],
    on_death: Callable[[], None],
    on_tick: Callable[[float], None],
    interval_seconds: float = WATCH_SECONDS,
) -> None:
    """Look at the engine until it is dead, then call `on_death` once and return.

    Args:
        on_tick: called each time with the seconds that passed, but never more than two intervals: a
            process that was paused (FlashBoot, SIGSTOP) or whose loop was blocked has not been working in
            between.
    """
    before = time.monotonic()
    while not is_dead():
        await asyncio.sleep(interval_seconds)
        now = time.monotonic()
        on_tick(min(now - before, 2 * interval_seconds))
        before = now
    on_death()


def exit_later(seconds: float, exit_code: Callable[[], int]) -> threading.Timer:
    """The last resort: `exit_now` after `seconds`, from a thread, so that neither a blocked loop nor a
    hanging clean-up keeps a dead worker (and its bill) alive. Cancel the returned timer where the process
    ends by itself."""

    def expire() -> None:
        logger.error("the worker did not end by itself within %s s", seconds)
        exit_now(exit_code())

    timer = threading.Timer(seconds, expire)
    timer.daemon = True
    timer.start()
    return timer


def exit_now(exit_code: int) -> None:
    """End the process and its children at once: no clean-up but flushing what has been written.

    The children matter where Python is not PID 1: the SDK's ping process, left alone, would go on telling the
    platform that the worker lives.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe must not keep the process
            stream.flush()
    end_children()
    os._exit(exit_code)


def adopt_orphans() -> None:
    """Become the parent of processes that lose theirs below this one, as PID 1 would: when vLLM's engine
    process is killed, its workers go on, and `end_children` has to find them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children() -> None:
    """Kill what this process has started, and what that has started, and remove the files that they have
    left. Not Python's resource tracker: it ends with the last of them, and unlinks the shared memory that
    they have left."""
    seen: set[int] = set()
    # a process that ends while they are counted hands its own children on, to where they were counted already
    while found := [pid for pid in _descendants(os.getpid()) if pid not in seen]:
        seen.update(found)
        for pid in found:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                if _RESOURCE_TRACKER not in Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
    scratch.remove()


def end_resource_tracker() -> None:
    """Let Python's resource tracker clean up after ended children now instead of behind this process's last
    words. It starts again where it is needed."""
    stop = getattr(resource_tracker._resource_tracker, "_stop", None)  # not public; without it, no harm
    if stop is not None:
        stop()


def _descendants(pid: int) -> list[int]:
    """Process ids below `pid`, parents first. Collected before the first is killed: its orphans move
    elsewhere."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, children.read_text().split()):
                found += [child, *_descendants(child)]
    return found
