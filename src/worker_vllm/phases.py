"""Start-up told as it happens: which phase runs, and how long each took.

A line per phase goes to the log, in one fixed form that `worker-vllm local` recognises on the worker's
output (`phase: NAME …` when it begins, `phase: NAME 3.2 s` when it is done), because minutes of silence are
what users report as "stuck".
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

logger = logging.getLogger(__name__)


class Phases:
    """The phases of one start, in order, each with its seconds.

    Args:
        on_begin: is told the name of each phase that begins.

    Attributes:
        seconds: phase name to wall-clock seconds, for those that have ended.
    """

    def __init__(self, on_begin: Callable[[str], None] | None = None) -> None:
        self._on_begin = on_begin
        self._started = time.monotonic()
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

    def total(self) -> float:
        """Seconds since this object was made, which is when start-up began."""
        return time.monotonic() - self._started
