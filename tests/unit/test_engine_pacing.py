from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from worker_vllm.engine.pacing import batch_size, merge
from worker_vllm.job import BatchOptions
from worker_vllm.settings import WorkerSettings


async def source(*items: Any, closed: list[str] | None = None, name: str = "") -> Any:
    try:
        for item in items:
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, asyncio.Event):
                await item.wait()
                continue
            yield item
    finally:
        if closed is not None:
            closed.append(name)


async def drain(stream: Any) -> list[Any]:
    return [item async for item in stream]


@pytest.mark.parametrize("count", [1, 3])
async def test_every_item_comes_once_and_in_its_sources_order(count: int) -> None:
    closed: list[str] = []
    merged = await drain(merge([source(1, 2, 3, closed=closed, name=str(i)) for i in range(count)]))
    for index in range(count):
        assert [item for i, item in merged if i == index] == [1, 2, 3]
    assert sorted(closed) == [str(i) for i in range(count)]


async def test_a_slow_source_does_not_hold_the_others() -> None:
    gate = asyncio.Event()
    merged = merge([source(gate, "slow"), source("a", "b")])
    assert [await anext(merged), await anext(merged)] == [(1, "a"), (1, "b")]
    gate.set()
    assert await drain(merged) == [(0, "slow")]


@pytest.mark.parametrize("count", [1, 3])
async def test_the_first_failure_ends_all(count: int) -> None:
    closed: list[str] = []
    never = asyncio.Event()
    streams = [source("a", ValueError("x"), closed=closed, name="0")]
    streams += [source(never, closed=closed, name=str(i)) for i in range(1, count)]
    merged = merge(streams)
    assert await anext(merged) == (0, "a")
    with pytest.raises(ValueError, match="x"):
        await anext(merged)
    assert sorted(closed) == [str(i) for i in range(count)]


@pytest.mark.parametrize("count", [1, 3])
async def test_closing_closes_all(count: int) -> None:
    closed: list[str] = []
    never = asyncio.Event()
    merged = merge([source("a", never, closed=closed, name=str(i)) for i in range(count)])
    await anext(merged)
    await merged.aclose()
    assert sorted(closed) == [str(i) for i in range(count)]


async def test_cancelling_a_waiting_merge_closes_all() -> None:
    closed: list[str] = []
    never = asyncio.Event()
    merged = merge([source(never, closed=closed, name=str(i)) for i in range(2)])
    waiting = asyncio.create_task(drain(merged))
    await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.wait([waiting])
    assert sorted(closed) == ["0", "1"]


async def test_no_source_is_read_further_ahead_than_one_item() -> None:
    asked: list[int] = []

    async def counting() -> Any:
        for number in range(100):
            asked.append(number)
            yield number

    merged = merge([counting(), counting()])
    for _ in range(4):
        await anext(merged)
        await asyncio.sleep(0)
    assert len(asked) <= 4 + 2 * 2
    await merged.aclose()


def test_nothing_chosen_means_the_platforms_pace() -> None:
    assert batch_size(WorkerSettings(), BatchOptions()) is None


@pytest.mark.parametrize(
    ("settings", "options", "first"),
    [
        ({"default_batch_size": 8}, {}, 1),
        ({"min_batch_size": 4}, {}, 4),
        ({"batch_size_growth_factor": 2.0}, {}, 1),
        ({}, {"max_batch_size": 8}, 1),
        ({"min_batch_size": 4}, {"min_batch_size": 2}, 2),
        ({"batch_size_growth_factor": 1.0}, {"max_batch_size": 8}, 8),
    ],
)
def test_what_is_chosen_wins_over_the_old_defaults(settings: Any, options: Any, first: int) -> None:
    size = batch_size(WorkerSettings(**settings), BatchOptions(**options))
    assert size is not None and size.current == first


def test_the_growth_of_a_job_is_its_own() -> None:
    options = SimpleNamespace(max_batch_size=8, min_batch_size=2, growth=2.0)
    size = batch_size(WorkerSettings(default_batch_size=50), options)
    assert size is not None
    size.advance()
    assert size.current == 4
