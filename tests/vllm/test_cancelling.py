"""Leaving a job in any phase ends its work in the engine, and gives its KV blocks back."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import Any

import pytest

from tests.vllm.driving import ABORT_SECONDS, is_busy, is_idle, run, settles, stream
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.record import JobRecord, current_record

ONE_STEP_SECONDS = 0.05
LONG = {"max_tokens": 400, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "a"}], **LONG}
JOBS: dict[str, dict[str, Any]] = {
    "native": {"prompt": "a", "sampling_params": LONG},
    "native, n = 2": {"prompt": "a", "sampling_params": {**LONG, "n": 2}},
    "native, prompts": {"prompt": ["a", "b", "c"], "sampling_params": LONG},
    "native, batches": {"prompt": "a", "sampling_params": LONG, "max_batch_size": 4},
    "chat": {"openai_route": "/v1/chat/completions", "openai_input": CHAT},
    "completions": {"openai_route": "/v1/completions", "openai_input": {"prompt": ["a", "b"], **LONG}},
    "responses": {"openai_route": "/v1/responses", "openai_input": {"input": "a", "max_output_tokens": 400}},
    "messages": {"openai_route": "/v1/messages", "openai_input": {**CHAT, "max_tokens": 400}},
}


def streamed(name: str) -> dict[str, Any]:
    job = JOBS[name]
    if "openai_input" in job:
        return {**job, "openai_input": {**job["openai_input"], "stream": True}}
    return {**job, "stream": True}


async def assert_nothing_is_left(host: EngineHost) -> None:
    assert await settles(host)
    assert await is_idle(host)
    (item,) = await run(host, {"prompt": "a", "sampling_params": {"max_tokens": 1}})
    assert item["usage"]["output"] == 1


async def _drive(host: EngineHost, job: dict[str, Any]) -> None:
    current_record.set(JobRecord("job"))
    chunks = stream(host, job)
    try:
        async for _ in chunks:
            pass
    finally:
        await chunks.aclose()


@pytest.mark.parametrize("name", JOBS)
async def test_cancelled_while_it_generates(tiny: EngineHost, name: str) -> None:
    task = asyncio.create_task(_drive(tiny, JOBS[name]))
    assert await is_busy(tiny)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await assert_nothing_is_left(tiny)


@pytest.mark.parametrize("name", JOBS)
async def test_closed_while_the_consumer_holds_a_chunk(tiny: EngineHost, name: str) -> None:
    current_record.set(JobRecord("job"))
    chunks = stream(tiny, streamed(name))
    await anext(chunks)
    assert tiny.unfinished_requests > 0
    await chunks.aclose()
    await assert_nothing_is_left(tiny)


@pytest.mark.parametrize("name", JOBS)
async def test_cancelled_in_mid_stream(tiny: EngineHost, name: str) -> None:
    task = asyncio.create_task(_drive(tiny, streamed(name)))
    assert await is_busy(tiny)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await assert_nothing_is_left(tiny)


@pytest.mark.parametrize("steps", range(0, 12, 2))
@pytest.mark.parametrize("name", ["native", "chat"])
async def test_cancelled_before_the_first_token(tiny: EngineHost, name: str, steps: int) -> None:
    """After so many turns of the loop: while it renders, while it is handed to the engine, while it waits."""
    task = asyncio.create_task(_drive(tiny, streamed(name)))
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await assert_nothing_is_left(tiny)


@pytest.mark.parametrize("name", ["native", "chat"])
async def test_closed_before_it_began(tiny: EngineHost, name: str) -> None:
    chunks = stream(tiny, streamed(name))
    await chunks.aclose()
    await assert_nothing_is_left(tiny)


@pytest.mark.parametrize("name", ["native", "chat"])
async def test_closed_after_its_end(tiny: EngineHost, name: str) -> None:
    job = streamed(name)
    short = {"max_tokens": 2}
    if "openai_input" in job:
        job["openai_input"] = {**job["openai_input"], **short}
    else:
        job["sampling_params"] = {**LONG, **short}
    chunks = stream(tiny, job)
    async for _ in chunks:
        pass
    await chunks.aclose()
    await assert_nothing_is_left(tiny)


@pytest.mark.parametrize("name", ["native", "chat"])
async def test_the_engine_hears_of_it_within_a_tenth_of_a_second(tiny: EngineHost, name: str) -> None:
    """The best of three, since other programs may hold the machine: closing to an empty front end."""
    seconds = []
    for _ in range(3):
        chunks = stream(tiny, streamed(name))
        await anext(chunks)
        began = time.monotonic()
        closing = asyncio.create_task(chunks.aclose())
        assert await settles(tiny, seconds=5)
        seconds.append(time.monotonic() - began)
        await closing
    print(f"{name}: {min(seconds) * 1000:.1f} ms from closing to an engine without the request")
    assert min(seconds) < ABORT_SECONDS + ONE_STEP_SECONDS
    await assert_nothing_is_left(tiny)


async def test_others_run_on(tiny: EngineHost) -> None:
    job = {"prompt": "a", "sampling_params": {"max_tokens": 64, "ignore_eos": True}}
    others = [asyncio.create_task(run(tiny, job, f"other-{index}")) for index in range(4)]
    task = asyncio.create_task(_drive(tiny, streamed("native")))
    assert await is_busy(tiny)
    task.cancel()
    for (item,) in await asyncio.gather(*others):
        assert item["usage"]["output"] == 64
