from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_vllm import batching
from worker_vllm.batching import BatchSize, coalesce

PROPERTY = settings(deadline=None, database=None)


class Source:
    """A scripted stream: `push` items, `fail` or `finish` it; records how it is read and closed."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Callable[[], Any]] = asyncio.Queue()
        self.taken = 0
        self.closed = 0
        self.closing_takes = 0.0
        self.closed_in: asyncio.Task[Any] | None = None
        self.read_in: asyncio.Task[Any] | None = None

    def push(self, *items: Any) -> None:
        for item in items:
            self._queue.put_nowait(lambda item=item: item)

    def fail(self, error: BaseException) -> None:
        def raise_it() -> Any:
            raise error

        self._queue.put_nowait(raise_it)

    def finish(self) -> None:
        self.fail(StopAsyncIteration())

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self.read_in = asyncio.current_task()
        item = (await self._queue.get())()
        self.taken += 1
        return item

    async def aclose(self) -> None:
        self.closed_in = asyncio.current_task()
        await asyncio.sleep(self.closing_takes)
        self.closed += 1


def paced(source: AsyncIterator[Any], max_bytes: int = 1000) -> AsyncGenerator[list[Any], None]:
    return coalesce(source, size=None, weigh=lambda item: 1, cost=_cost, max_bytes=max_bytes)


def counted(
    source: AsyncIterator[Any],
    size: BatchSize,
    max_bytes: int = 1000,
    weigh: Callable[[Any], int] | None = None,
) -> AsyncGenerator[list[Any], None]:
    return coalesce(source, size=size, weigh=weigh or (lambda item: 1), cost=_cost, max_bytes=max_bytes)


def _cost(item: Any) -> int:
    return len(item) if isinstance(item, str) else 1


async def numbers(count: int) -> AsyncGenerator[int, None]:
    for number in range(count):
        yield number


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def other_tasks() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    yield
    await settle()
    assert other_tasks() == set()
    assert not batching._closing


# --- the growth rule of worker-contract.md section B ---


@pytest.mark.parametrize(
    ("minimum", "maximum", "growth", "increments", "sizes"),
    [
        (1, 50, 3, 200, [1, 3, 9, 27, 50, 50, 50, 10]),
        (2, 8, 1.5, 20, [2, 3, 5, 7, 3]),
        (1, 50, 1, 40, [40]),
        (1, 50, 1, 120, [50, 50, 20]),
        (1, 1, 3, 4, [1, 1, 1, 1]),
        (0, 3, 3, 7, [3, 3, 1]),
        (5, 3, 3, 7, [3, 3, 1]),
        (1, 50, 0.5, 60, [50, 10]),
        (1, 3, 3, 4, [1, 3]),
    ],
)
async def test_counts_follow_the_old_workers_rule(
    minimum: int, maximum: int, growth: float, increments: int, sizes: list[int]
) -> None:
    batches = counted(numbers(increments), BatchSize(minimum, maximum, growth))
    assert [len(batch) async for batch in batches] == sizes


async def test_a_batch_ends_when_its_weight_passes_the_size() -> None:
    batches = counted(numbers(7), BatchSize(1, 4, 1), weigh=lambda item: 3 if item == 1 else 1)
    assert [batch async for batch in batches] == [[0, 1], [2, 3, 4, 5], [6]]


async def test_items_without_weight_come_along() -> None:
    batches = counted(numbers(6), BatchSize(1, 2, 1), weigh=lambda item: item % 2)
    assert [batch async for batch in batches] == [[0, 1, 2, 3], [4, 5]]


async def test_a_split_by_bytes_leaves_the_counts_where_they_were() -> None:
    source = Source()
    source.push("aaa", "bbb", "c", "d", "e")
    source.finish()
    batches = counted(source, BatchSize(1, 3, 1), max_bytes=5)
    assert [batch async for batch in batches] == [["aaa"], ["bbb", "c"], ["d", "e"]]


# --- to the consumer's pace ---


async def test_the_first_item_is_not_held_back() -> None:
    source = Source()
    async with aclosing(paced(source)) as batches:
        waiting = asyncio.ensure_future(anext(batches))
        await settle()
        source.push("a")
        assert await waiting == ["a"]


async def test_what_is_there_already_goes_out_together() -> None:
    source = Source()
    source.push("role", "token")
    async with aclosing(paced(source)) as batches:
        assert await anext(batches) == ["role", "token"]


async def test_what_arrives_while_the_consumer_is_busy_is_the_next_batch() -> None:
    source = Source()
    source.push("a")
    async with aclosing(paced(source)) as batches:
        assert await anext(batches) == ["a"]
        source.push("b", "c")
        await settle()
        source.push("d")
        await settle()
        assert await anext(batches) == ["b", "c", "d"]


async def test_no_batch_exceeds_the_bytes_and_a_larger_item_goes_alone() -> None:
    source = Source()
    source.push("aa", "bb", "c", "0123456789", "d")
    source.finish()
    assert [batch async for batch in paced(source, max_bytes=5)] == [["aa", "bb", "c"], ["0123456789"], ["d"]]


async def test_reading_ahead_stops_at_the_bytes() -> None:
    source = Source()
    source.push(*["xx"] * 1000)
    async with aclosing(paced(source, max_bytes=10)) as batches:
        assert await anext(batches) == ["xx"] * 5
        await settle()
        assert source.taken == 10
        assert await anext(batches) == ["xx"] * 5


async def test_items_that_cost_nothing_are_bounded_too() -> None:
    source = Source()
    source.push(*[""] * 1000)
    async with aclosing(paced(source, max_bytes=10)) as batches:
        await anext(batches)
        await settle()
        assert source.taken <= 20


async def test_an_empty_source_gives_nothing() -> None:
    assert [batch async for batch in paced(numbers(0))] == []
    assert [batch async for batch in counted(numbers(0), BatchSize(1, 3, 2))] == []


async def test_the_source_sees_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("job-1")

    async def source() -> AsyncGenerator[str, None]:
        yield variable.get()

    assert [batch async for batch in paced(source())] == [["job-1"]]


# --- every way to end, in every phase ---


@pytest.mark.parametrize("size", [None, BatchSize(1, 50, 3)])
async def test_at_the_sources_end_it_is_closed_once(size: BatchSize | None) -> None:
    source = Source()
    source.push("a", "b")
    source.finish()
    batches = paced(source) if size is None else counted(source, size)
    assert [item async for batch in batches for item in batch] == ["a", "b"]
    assert source.closed == 1


@pytest.mark.parametrize("size", [None, BatchSize(1, 50, 3)])
async def test_a_failure_comes_after_the_items_before_it(size: BatchSize | None) -> None:
    source = Source()
    source.push("a", "b", "c")
    source.fail(ValueError("broken"))
    seen: list[str] = []
    batches = paced(source) if size is None else counted(source, size)
    with pytest.raises(ValueError, match="broken"):
        async for batch in batches:
            seen += batch
    assert seen == ["a", "b", "c"]
    assert source.closed == 1


async def test_a_failure_before_the_first_item_comes_at_once() -> None:
    source = Source()
    source.fail(ValueError("broken"))
    with pytest.raises(ValueError, match="broken"):
        await anext(paced(source))
    assert source.closed == 1


async def test_leaving_in_the_middle_closes_the_source() -> None:
    source = Source()
    source.push("a")
    async with aclosing(paced(source)) as batches:
        async for _ in batches:
            break
    assert source.closed == 1


async def test_leaving_before_the_start_leaves_the_source_alone() -> None:
    source = Source()
    await paced(source).aclose()
    assert (source.taken, source.closed) == (0, 0)


async def test_leaving_with_items_and_a_failure_unread_says_nothing() -> None:
    source = Source()
    source.push("a")
    async with aclosing(paced(source)) as batches:
        await anext(batches)
        source.push("b")
        source.fail(ValueError("unread"))
        await settle()
    assert source.closed == 1
    gc.collect()


@pytest.mark.parametrize("items", [0, 1])
async def test_a_consumer_cancelled_while_it_waits_closes_the_source(items: int) -> None:
    source = Source()
    source.push(*["a"] * items)

    async def consume() -> None:
        async with aclosing(paced(source)) as batches:
            async for _ in batches:
                pass

    consumer = asyncio.ensure_future(consume())
    await settle()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert source.closed == 1


async def test_a_consumer_cancelled_while_it_is_busy_closes_the_source() -> None:
    source = Source()
    source.push("a")

    async def consume() -> None:
        async with aclosing(paced(source)) as batches:
            async for _ in batches:
                await asyncio.sleep(60)

    consumer = asyncio.ensure_future(consume())
    await settle()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert source.closed == 1


async def test_a_consumer_that_fails_closes_the_source() -> None:
    source = Source()
    source.push("a")
    with pytest.raises(RuntimeError, match="consumer"):
        async with aclosing(paced(source)) as batches:
            async for _ in batches:
                raise RuntimeError("the consumer's own")
    assert source.closed == 1


async def test_a_reader_waiting_for_room_is_let_go() -> None:
    source = Source()
    source.push(*["xx"] * 100)
    async with aclosing(paced(source, max_bytes=4)) as batches:
        await anext(batches)
        await settle()
    assert source.closed == 1


async def test_closing_twice_closes_the_source_once() -> None:
    source = Source()
    source.push("a")
    batches = paced(source)
    await anext(batches)
    await batches.aclose()
    await batches.aclose()
    assert source.closed == 1


async def test_a_generator_that_is_only_dropped_is_closed_by_the_loop() -> None:
    source = Source()
    source.push("a")
    batches = paced(source)
    await anext(batches)
    del batches
    gc.collect()
    await settle()
    assert source.closed == 1


async def test_leaving_waits_until_the_source_has_closed() -> None:
    source = Source()
    source.closing_takes = 0.05
    source.push("a")
    async with aclosing(paced(source)) as batches:
        await anext(batches)
    assert source.closed == 1


async def test_cancelled_a_second_time_the_source_still_closes() -> None:
    source = Source()
    source.closing_takes = 0.05

    async def consume() -> None:
        async with aclosing(paced(source)) as batches:
            await anext(batches)

    consumer = asyncio.ensure_future(consume())
    await settle()
    consumer.cancel()
    await settle()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert source.closed == 0
    await asyncio.sleep(0.1)
    assert source.closed == 1


async def test_cancelled_before_the_reading_task_ran_the_source_is_closed() -> None:
    source = Source()
    pump = batching._Pump(source, _cost, 10)
    await pump.close()
    assert (source.taken, source.closed) == (0, 1)


async def test_the_task_that_reads_the_source_closes_it() -> None:
    """Cancel scopes (anyio) inside a source must be left by the task that entered them."""
    source = Source()
    source.push("a")
    async with aclosing(paced(source)) as batches:
        await anext(batches)
    assert source.closed_in is source.read_in
    assert source.read_in is not asyncio.current_task()


async def test_a_source_that_swallows_the_cancellation_is_stopped_at_its_next_item() -> None:
    closed = []

    async def stubborn() -> AsyncGenerator[int, None]:
        try:
            yield 0
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    yield 1
        finally:
            closed.append(True)

    async with aclosing(paced(stubborn())) as batches:
        await anext(batches)
        await settle()
    assert closed == [True]


async def test_a_source_that_does_not_close_is_left_after_a_while(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(batching, "CLOSE_SECONDS", 0.01)
    source = Source()
    source.closing_takes = 0.1
    source.push("a")
    async with aclosing(paced(source)) as batches:
        await anext(batches)
    assert "did not close" in caplog.text
    await asyncio.sleep(0.15)
    assert source.closed == 1


async def test_a_source_without_aclose_is_fine() -> None:
    class Plain:
        def __init__(self) -> None:
            self._left = 3

        def __aiter__(self) -> AsyncIterator[int]:
            return self

        async def __anext__(self) -> int:
            if not self._left:
                raise StopAsyncIteration
            self._left -= 1
            return self._left

    assert [item async for batch in paced(Plain()) for item in batch] == [2, 1, 0]


@PROPERTY
@given(
    items=st.lists(st.text(max_size=12), max_size=40),
    size=st.none() | st.tuples(st.integers(0, 5), st.integers(1, 9), st.floats(0, 3)),
    max_bytes=st.integers(1, 20),
    pauses=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_batches_joined_are_the_source(
    items: list[str], size: tuple[int, int, float] | None, max_bytes: int, pauses: list[bool]
) -> None:
    async def source() -> AsyncGenerator[str, None]:
        for item, pause in zip(items, pauses, strict=False):
            if pause:
                await asyncio.sleep(0)
            yield item

    async def run() -> list[list[str]]:
        chosen = None if size is None else BatchSize(*size)
        return [
            batch
            async for batch in coalesce(
                source(), size=chosen, weigh=lambda item: 1, cost=len, max_bytes=max_bytes
            )
        ]

    batches = asyncio.run(run())
    assert [item for batch in batches for item in batch] == items
    assert all(batches)
    assert all(sum(map(len, batch)) <= max_bytes or len(batch) == 1 for batch in batches)
