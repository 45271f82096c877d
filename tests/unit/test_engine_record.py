from __future__ import annotations

from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes import FakeOutput, FakePart
from worker_vllm.engine.record import JobRecord, current_record, observe


def params(kind: str) -> Any:
    return SimpleNamespace(output_kind=SimpleNamespace(name=kind))


async def outputs(*items: Any) -> Any:
    for item in items:
        yield item


def output(tokens: int, *, index: int = 0, finish: str | None = None, metrics: Any = None) -> FakeOutput:
    part = FakePart(index, "x", [1] * tokens, finish_reason=finish)
    return FakeOutput([part], [7, 8, 9], finished=finish is not None, metrics=metrics)


@pytest.fixture
def record() -> Any:
    made = JobRecord("job")
    token = current_record.set(made)
    yield made
    current_record.reset(token)


async def drain(stream: Any) -> list[Any]:
    return [item async for item in stream]


async def test_a_stream_is_counted_and_passes_unchanged(record: JobRecord) -> None:
    items = [output(1), output(2), output(0, finish="stop")]
    assert await drain(observe(outputs(*items), params("DELTA"), "r")) == items
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (3, 3, "stop")
    assert record.first_token_at is not None
    assert record.unfinished == set()


async def test_cumulative_outputs_count_what_is_new(record: JobRecord) -> None:
    items = [output(1), output(3), output(2, index=1), output(4, finish="length")]
    await drain(observe(outputs(*items), params("CUMULATIVE"), "r"))
    assert record.output_tokens == 6


async def test_several_requests_add_up(record: JobRecord) -> None:
    for name in ("a", "b"):
        await drain(observe(outputs(output(2, finish="stop")), params("DELTA"), name))
    assert (record.prompt_tokens, record.output_tokens) == (6, 4)


async def test_a_plain_answers_first_token_is_the_engines_own_time(record: JobRecord) -> None:
    metrics = SimpleNamespace(first_token_ts=12.5)
    await drain(observe(outputs(output(4, finish="stop", metrics=metrics)), params("FINAL_ONLY"), "r"))
    assert record.first_token_at == 12.5


async def test_the_first_token_is_not_an_empty_output(record: JobRecord) -> None:
    stream = observe(outputs(output(0), output(1, finish="stop")), params("DELTA"), "r")
    async with aclosing(stream):
        await anext(stream)
        assert record.first_token_at is None
        await anext(stream)
        assert record.first_token_at is not None


async def test_an_embedding_has_a_prompt_and_no_tokens(record: JobRecord) -> None:
    pooled = SimpleNamespace(outputs=SimpleNamespace(data=[0.5]), prompt_token_ids=[1, 2], finished=True)
    await drain(observe(outputs(pooled), SimpleNamespace(), "r"))
    assert (record.prompt_tokens, record.output_tokens, record.first_token_at) == (2, 0, None)


async def test_a_request_that_is_left_stays_unfinished(record: JobRecord) -> None:
    stream = observe(outputs(output(1), output(1, finish="stop")), params("DELTA"), "r")
    async with aclosing(stream):
        await anext(stream)
    assert record.unfinished == {"r"}


async def test_closing_closes_the_source(record: JobRecord) -> None:
    closed = []

    async def source() -> Any:
        try:
            yield output(1)
            yield output(1)
        finally:
            closed.append(True)

    stream = observe(source(), params("DELTA"), "r")
    await anext(stream)
    await stream.aclose()
    assert closed == [True]


async def test_without_a_job_nothing_is_wrapped() -> None:
    source = outputs(output(1))
    assert observe(source, params("DELTA"), "r") is source
    await source.aclose()


def test_usage_replaces_the_counts() -> None:
    record = JobRecord("job", prompt_tokens=900, output_tokens=90)
    record.take_usage({"prompt_tokens": 5, "completion_tokens": 6})
    assert (record.prompt_tokens, record.output_tokens) == (5, 6)
    record.take_usage(None)
    assert (record.prompt_tokens, record.output_tokens) == (5, 6)
