"""Group a stream's items into batches: by the old worker's growing counts, or to the consumer's own pace.

Each batch costs the platform one round trip, so the usual way is pace: whatever arrived while the consumer
was busy with one batch is the next one. A stream then costs one post per round trip and no token waits for
another.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, Generic, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

CLOSE_SECONDS = 10.0
"""How long leaving a batcher waits for its source to finish closing."""

# Tasks that outlive their batcher's wait: the event loop itself keeps only weak references.
_closing: set[asyncio.Task[None]] = set()


class BatchSize:
    """How many increments the next batch holds.

    Grows from `minimum` by `growth` after each batch up to `maximum`; where the three leave no room to grow
    (growth <= 1, minimum < 1 or maximum <= minimum) it is `maximum` from the start. It may be fractional: a
    batch ends when its count reaches or passes it.
    """

    def __init__(self, minimum: int, maximum: int, growth: float) -> None:
        grows = growth > 1 and minimum >= 1 and maximum > minimum
        self._maximum = maximum
        self._growth = growth if grows else 1.0
        self._current: float = minimum if grows else maximum

    @property
    def current(self) -> float:
        """The count at which the batch being filled ends."""
        return self._current

    def advance(self) -> None:
        """Move on to the next batch's size."""
        self._current = min(self._current * self._growth, self._maximum)


async def coalesce(
    source: AsyncIterator[T],
    *,
    size: BatchSize | None,
    weigh: Callable[[T], int],
    cost: Callable[[T], int],
    max_bytes: int,
) -> AsyncGenerator[list[T], None]:
    """Yield the source's items in order, grouped into lists that are never empty.

    Args:
        source: read and closed in one task of its own (which sees this caller's context variables). It is
            read ahead by about `max_bytes`, then waits for the consumer.
        size: None groups to the consumer's pace: what is there goes out, nothing is waited for. Otherwise a
            list ends when the `weigh` of its items reaches `size.current`; the rest goes out at the end.
        weigh: how much an item counts towards `size`; 0 for items that only come along.
        cost: an item's size in bytes.
        max_bytes: no list is larger. A list is split between items; one item above the cap goes alone. Such a
            split adds a border and leaves the counts of `size` where they were.

    Raises:
        Whatever the source raises, after the items that came before.

    The source is closed (`aclose`, where it has one) once however this ends, except where this generator was
    never started: then the source was not touched either. Whoever iterates must close this generator.
    """
    pump = _Pump(source, cost, max_bytes)
    batch: list[T] = []
    batch_bytes = 0
    weight = 0
    try:
        while await pump.wait():
            while pump.holds_items():
                if batch and batch_bytes + pump.next_cost() > max_bytes:
                    yield batch
                    batch, batch_bytes = [], 0
                item, item_bytes = pump.take()
                batch.append(item)
                batch_bytes += item_bytes
                if size is not None and (weight := weight + weigh(item)) >= size.current:
                    yield batch
                    batch, batch_bytes, weight = [], 0, 0
                    size.advance()
            if size is None and batch:
                yield batch
                batch, batch_bytes = [], 0
        if batch:
            yield batch
        pump.raise_failure()
    finally:
        await pump.close()


class _Pump(Generic[T]):
    """Reads a source ahead in a task of its own, into a buffer bounded by bytes.

    One task reads and closes the source, since cancel scopes and context variables inside it want the same
    task for both. It must be made in a running event loop, and closed.
    """

    def __init__(self, source: AsyncIterator[T], cost: Callable[[T], int], limit_bytes: int) -> None:
        self._source = source
        self._cost = cost
        self._limit_bytes = limit_bytes
        self._items: deque[tuple[T, int]] = deque()
        self._buffered_bytes = 0
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._stopping = False
        self._source_closed = False
        self._task = asyncio.create_task(self._run())
        self._task.add_done_callback(lambda _: self._changed.set())

    async def wait(self) -> bool:
        """Wait for an item or the end; False at the end."""
        while not self._items and not self._task.done():
            self._changed.clear()
            await self._changed.wait()
        return bool(self._items)

    def holds_items(self) -> bool:
        return bool(self._items)

    def next_cost(self) -> int:
        return self._items[0][1]

    def take(self) -> tuple[T, int]:
        item, item_bytes = self._items.popleft()
        self._buffered_bytes -= item_bytes
        self._room.set()
        return item, item_bytes

    def raise_failure(self) -> None:
        """Raise what the source raised, if it did. Only after the end."""
        self._task.result()

    async def close(self) -> None:
        """Stop reading and close the source. May be cancelled: the closing then goes on by itself."""
        self._stopping = True
        _closing.add(self._task)
        self._task.add_done_callback(_forget)
        self._task.cancel()
        await asyncio.wait({self._task}, timeout=CLOSE_SECONDS)
        if not self._task.done():
            logger.warning("a stream's source did not close within %s s", CLOSE_SECONDS)
        elif not self._source_closed:
            await self._close_source()  # cancelled before its first step: the task's own clean-up never ran

    async def _run(self) -> None:
        try:
            async for item in self._source:
                if self._stopping:  # the source swallowed the cancellation
                    break
                # An item that costs nothing still takes memory, so it counts as a byte.
                item_bytes = max(1, self._cost(item))
                self._items.append((item, item_bytes))
                self._buffered_bytes += item_bytes
                self._changed.set()
                while self._buffered_bytes >= self._limit_bytes:
                    self._room.clear()
                    await self._room.wait()
        finally:
            await self._close_source()

    async def _close_source(self) -> None:
        self._source_closed = True
        aclose: Any = getattr(self._source, "aclose", None)
        if aclose is not None:
            await aclose()


def _forget(task: asyncio.Task[None]) -> None:
    _closing.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as seen: the consumer had it, or left without wanting it
