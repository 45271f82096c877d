"""How a job's stream is cut into items, and how several streams of one job become one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Protocol, TypeVar

from worker_vllm.batching import BatchSize

T = TypeVar("T")

# The old worker's defaults, for what is not set where something is.
_MAXIMUM = 50
_MINIMUM = 1
_GROWTH = 3.0


class BatchSettings(Protocol):
    """The worker's settings for batch sizes; None where the user has chosen nothing."""

    @property
    def default_batch_size(self) -> int | None: ...
    @property
    def min_batch_size(self) -> int | None: ...
    @property
    def batch_size_growth_factor(self) -> float | None: ...


class BatchOptions(Protocol):
    """A job's own batch sizes; None where it has none."""

    @property
    def max_batch_size(self) -> int | None: ...
    @property
    def min_batch_size(self) -> int | None: ...
    @property
    def growth(self) -> float | None: ...


def batch_size(settings: BatchSettings, options: BatchOptions | None = None) -> BatchSize | None:
    """The counts that a stream's items follow; None where nobody has chosen any: the platform's pace then."""
    maximum = (options and options.max_batch_size) or settings.default_batch_size
    minimum = (options and options.min_batch_size) or settings.min_batch_size
    growth = (options and options.growth) or settings.batch_size_growth_factor
    if maximum is None and minimum is None and growth is None:
        return None
    return BatchSize(minimum or _MINIMUM, maximum or _MAXIMUM, growth or _GROWTH)


async def merge(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """The items of several generators as they come, each with its generator's index.

    Each generator is asked for one item ahead and no more. The first failure ends all; however this ends, all
    are closed.
    """
    if len(streams) == 1:  # no tasks: the consumer's own pull reaches the engine
        try:
            async for item in streams[0]:
                yield 0, item
        finally:
            await streams[0].aclose()
        return
    pending: dict[asyncio.Task[T], int] = {}
    try:
        for index, stream in enumerate(streams):
            pending[asyncio.ensure_future(anext(stream))] = index
        while pending:
            done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=pending.__getitem__):
                index = pending.pop(task)
                try:
                    item = task.result()
                except StopAsyncIteration:
                    continue
                # asked for before the yield, so that it is on its way while the consumer is busy
                pending[asyncio.ensure_future(anext(streams[index]))] = index
                yield index, item
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        for stream in streams:
            await stream.aclose()
