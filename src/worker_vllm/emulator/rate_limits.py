"""The documented limits per operation: calls within 10 s, and calls at once (runpod-platform.md 1.10)."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .wire import WireError

WINDOW_S = 10.0

LIMITS: dict[str, tuple[int, int | None]] = {
    "runsync": (2000, 400),
    "run": (1000, 200),
    "status": (2000, 400),
    "status-sync": (2000, 400),
    "stream": (2000, 400),
    "cancel": (100, 20),
    "purge-queue": (2, None),
    "openai": (2000, 400),
    "requests": (10, 2),
}
"""Operation to calls per window and calls at once. Other operations have none."""


class RateLimits:
    """Counts calls of one endpoint.

    Args:
        clock: seconds.
        running_workers: how many workers run now.
        per_worker: what each of them adds: the effective limit is the larger of base and workers x this.
    """

    def __init__(
        self, clock: Callable[[], float], running_workers: Callable[[], int], per_worker: int
    ) -> None:
        self._clock = clock
        self._running_workers = running_workers
        self._per_worker = per_worker
        self._recent: defaultdict[str, deque[float]] = defaultdict(deque)
        self._open: Counter[str] = Counter()

    @contextmanager
    def call(self, operation: str) -> Iterator[None]:
        """Count one call for as long as the block runs.

        Raises:
            WireError: 429, over the limit.
        """
        if operation not in LIMITS:
            yield
            return
        base, at_once = LIMITS[operation]
        now, recent = self._clock(), self._recent[operation]
        while recent and recent[0] <= now - WINDOW_S:
            recent.popleft()
        limit = max(base, self._running_workers() * self._per_worker)
        if len(recent) >= limit or (at_once is not None and self._open[operation] >= at_once):
            raise WireError(429, f"too many requests to {operation}")
        recent.append(now)
        self._open[operation] += 1
        try:
            yield
        finally:
            self._open[operation] -= 1
