"""The notes on one request while its answer arrives."""

from __future__ import annotations

import time

from worker_vllm.bench.stats import RequestTimes

_SAME_ARRIVAL_SECONDS = 0.0002
"""Chunks closer together than this came in one read of the socket: one arrival."""


class Watch:
    """The notes on one request, from its sending on.

    Attributes:
        tokens: tokens generated, once known.
        error: set when the request failed.
        queue_seconds: see `RequestTimes`.
    """

    def __init__(self, index: int) -> None:
        self.tokens = 0
        self.error: str | None = None
        self.queue_seconds: float | None = None
        self._index = index
        self._sent = self._last = time.monotonic()
        self._first: float | None = None
        self._gaps: list[float] = []
        self._chunks = 0

    def text(self, chunks: int = 1) -> None:
        """Text has arrived just now, in so many chunks."""
        now = time.monotonic()
        self._chunks += chunks
        if self._first is None:
            self._first = now
        elif now - self._last > _SAME_ARRIVAL_SECONDS:
            self._gaps.append(now - self._last)
        self._last = now

    def other(self) -> None:
        """A chunk without text has arrived."""
        self._chunks += 1

    def end(self, tokens: int) -> None:
        """A whole answer has arrived just now."""
        self._last = time.monotonic()
        self._chunks += 1
        self.tokens = tokens

    @property
    def started(self) -> bool:
        """Whether any text has arrived."""
        return self._first is not None

    def result(self) -> RequestTimes:
        """The notes as a value."""
        if self.error is None and self.tokens == 0:
            self.error = "the answer holds no tokens"
        return RequestTimes(
            index=self._index,
            sent=self._sent,
            first=self._first,
            last=self._last,
            gaps=tuple(self._gaps),
            chunks=self._chunks,
            tokens=self.tokens,
            queue_seconds=self.queue_seconds,
            error=self.error,
        )
