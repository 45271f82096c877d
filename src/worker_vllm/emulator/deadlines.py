"""Reminders: which jobs to look at by now."""

from __future__ import annotations

import heapq
import itertools


class Deadlines:
    """Job ids by the time at which each wants to be looked at.

    A reminder that is out of date does no harm, because whoever looks decides by the job itself: nothing is
    ever taken back.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, str]] = []
        self._order = itertools.count()

    def add(self, at: float, job_id: str) -> None:
        """Have `due` name this job once `at` has come."""
        heapq.heappush(self._heap, (at, next(self._order), job_id))

    def due(self, now: float) -> list[str]:
        """The jobs whose time has come, each reminder once, the earliest first."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found
