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
import logging
import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Callable

EXIT_STOPPED = 0
EXIT_ENGINE_DEAD = 4
EXIT_CUT_OFF = 5

WATCH_SECONDS = 0.25
"""How often the engine is looked at. A job's own exception usually tells sooner; the watch is for the
engine that dies while nobody asks it for anything."""

logger = logging.getLogger(__name__)


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
    """End the process and its direct children at once: no clean-up but flushing what has been written.

    The children matter where Python is not PID 1: the SDK's ping process, left alone, would go on telling the
    platform that the worker lives.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # a closed pipe must not keep the process
    end_children()
    os._exit(exit_code)


def end_children() -> None:
    """Kill this process's `multiprocessing` children."""
    for child in multiprocessing.active_children():
        child.kill()
