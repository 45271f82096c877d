from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from tests.fakes import FakeHost
from worker_vllm.engine.lifecycle import EngineLoad
from worker_vllm.engine.record import JobRecord, current_record
from worker_vllm.errors import EngineStartError


@pytest.fixture
def record() -> Any:
    made = JobRecord("job")
    token = current_record.set(made)
    yield made
    current_record.reset(token)


async def test_many_jobs_make_it_ready_once() -> None:
    host = FakeHost()
    await asyncio.gather(*(host.ready() for _ in range(5)))
    await host.ready()
    assert host.made_ready == 1


async def test_a_cancelled_job_does_not_stop_it_for_the_others() -> None:
    gate = asyncio.Event()
    host = FakeHost()
    host.on_ready = gate.wait
    first, second = asyncio.create_task(host.ready()), asyncio.create_task(host.ready())
    await asyncio.sleep(0)
    first.cancel()
    gate.set()
    await second
    assert first.cancelled() or first.done()
    assert host.made_ready == 1


async def test_a_failure_to_get_ready_is_told_to_every_job() -> None:
    async def fail() -> None:
        raise EngineStartError("no adapter")

    host = FakeHost()
    host.on_ready = fail
    for _ in range(2):
        with pytest.raises(EngineStartError):
            await host.ready()
    assert host.made_ready == 1


async def chunks(*items: str, closed: list[str]) -> Any:
    try:
        for item in items:
            yield item
    finally:
        closed.append("closed")


async def test_a_job_that_ends_by_itself_leaves_its_background_work_alone(record: JobRecord) -> None:
    host = FakeHost()
    closed: list[str] = []
    record.unfinished.add("background")
    assert [chunk async for chunk in host.attend(chunks("a", "b", closed=closed), at_pace=False)] == [
        "a",
        "b",
    ]
    assert host.llm.aborted == []
    assert closed == ["closed"]


async def test_a_job_that_is_left_takes_its_requests_along(record: JobRecord) -> None:
    host = FakeHost()
    closed: list[str] = []
    attended = host.attend(chunks("a", "b", closed=closed), at_pace=False)
    await anext(attended)
    record.unfinished.add("dropped")
    await attended.aclose()
    assert closed == ["closed"]
    assert host.llm.aborted == ["dropped"]
    assert record.unfinished == set()


async def test_a_dead_engine_is_not_asked_to_abort(record: JobRecord) -> None:
    host = FakeHost()
    attended = host.attend(chunks("a", "b", closed=[]), at_pace=False)
    await anext(attended)
    record.unfinished.add("r")
    host.llm.errored = True
    await attended.aclose()
    assert host.llm.aborted == []
    assert host.errored


def test_stopping_twice_stops_once() -> None:
    host = FakeHost()
    host.stop()
    host.stop()
    assert host.llm.shutdowns == 1


def test_load_is_the_sum_over_engines_and_their_fullest_cache() -> None:
    load = EngineLoad()
    assert (load.running, load.waiting, load.kv_cache_usage) == (0, 0, 0.0)
    load.note(0, SimpleNamespace(num_running_reqs=3, num_waiting_reqs=1, kv_cache_usage=0.5))
    load.note(1, SimpleNamespace(num_running_reqs=2, num_waiting_reqs=0, kv_cache_usage=0.75))
    load.note(0, SimpleNamespace(num_running_reqs=4, num_waiting_reqs=1, kv_cache_usage=0.25))
    assert (load.running, load.waiting, load.kv_cache_usage) == (6, 1, 0.75)


def test_steps_without_statistics_are_counted_alone() -> None:
    load = EngineLoad()
    load.note(0, None)
    load.note(1, None)
    assert (load.step_count, load.running, load.kv_cache_usage) == (2, 0, 0.0)


async def test_a_token_of_any_of_a_jobs_requests_begins_it(record: JobRecord) -> None:
    host = FakeHost()
    states = {"a-1": SimpleNamespace(is_prefilling=True), "b-1": SimpleNamespace(is_prefilling=False)}
    host.llm.output_processor = SimpleNamespace(
        external_req_ids={"a": ["a-1"], "b": ["b-1", "gone"]}, request_states=states
    )
    record.unfinished |= {"a", "unknown"}
    assert not host.has_begun(record)
    record.unfinished.add("b")
    assert host.has_begun(record)


async def test_a_job_is_cut_short_by_aborting_what_it_has_in_the_engine(record: JobRecord) -> None:
    host = FakeHost()
    assert await host.cut_short(record) is False
    record.unfinished.add("a")
    assert await host.cut_short(record) is True
    assert host.llm.aborted == ["a"]
    host.llm.errored = True
    assert await host.cut_short(record) is False
