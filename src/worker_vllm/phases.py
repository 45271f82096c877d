"""Start-up told as it happens: which phase runs, and how long each took.

A line per phase goes to the log, in one fixed form that `worker-vllm local` recognises on the worker's
output (`phase: NAME …` when it begins, `phase: NAME 3.2 s` when it is done), because minutes of silence are
what users report as "stuck".
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

logger = logging.getLogger(__name__)

_IMPORTED = time.monotonic()


class Phases:
    """The phases of one start, in order, each with its seconds.

    Args:
        on_begin: is told the name of each phase that begins.

    Attributes:
        seconds: phase name to wall-clock seconds, for those that have ended.
    """

    def __init__(self, on_begin: Callable[[str], None] | None = None) -> None:
        self._on_begin = on_begin
        self.seconds: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time the block as phase `name`. A block that raises is not recorded: the error is the news then."""
        begun = time.monotonic()
        logger.info("phase: %s …", name)
        if self._on_begin is not None:
            self._on_begin(name)
        yield
        self.seconds[name] = time.monotonic() - begun
        logger.info("phase: %s %.1f s", name, self.seconds[name])

    def passed(self, name: str) -> None:
        """Record all that this process has done until now as phase `name`, which no log has seen."""
        self.seconds[name] = process_age()
        logger.info("phase: %s %.1f s", name, self.seconds[name])


def process_age() -> float:
    """Seconds since this process was started, Python's own start and all imports included; where the system
    does not say when that was (proc(5), starttime), since this module was imported."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        return time.clock_gettime(time.CLOCK_BOOTTIME) - int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return time.monotonic() - _IMPORTED
