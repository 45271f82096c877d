"""What is too large for the platform is said clearly. How results are sent again: tests/contract."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from worker_vllm.errors import DeadlineError
from worker_vllm.serverless import cancellation
from worker_vllm.serverless.delivery import MAX_CHUNK_BYTES, MAX_RESULT_BYTES, Delivery

JOB = {"id": "job/../1"}


class Platform:
    """An aiohttp session's `post`; keeps what was posted and answers by the body's size."""

    def __init__(self, takes_bytes: int = MAX_RESULT_BYTES) -> None:
        self.posts: list[tuple[str, Any]] = []
        self._takes_bytes = takes_bytes

    @asynccontextmanager
    async def post(self, url: str, *, data: bytes, **_: Any) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        fits = len(data) <= self._takes_bytes
        self.posts.append((url, json.loads(data) if fits else None))

        async def read() -> bytes:
            return b""

        yield SimpleNamespace(status=200 if fits else 413, read=read)


async def deliver(platform: Platform, *chunks: Any, result: Any = None) -> list[Any]:
    """What the platform has accepted."""
    delivery = Delivery("http://p/done/$ID?x=1", "http://p/stream/$ID?x=1")

    async def job() -> None:
        for chunk in chunks:
            await delivery.stream_result(platform, {"output": chunk}, JOB)
        if result is not None:
            await delivery.send_result(platform, result, JOB, is_stream=True)

    await asyncio.create_task(job())
    return [body for _, body in platform.posts if body is not None]


EVENT = "data: {}\n\n"
ITEM = {"choices": [{"tokens": ["a"]}], "usage": {"input": 1, "output": 1}}


async def test_a_chunk_beyond_the_limit_ends_the_stream_with_a_413() -> None:
    huge = f"data: {'x' * MAX_CHUNK_BYTES}\n\n"
    first, last = await deliver(Platform(), EVENT, huge, EVENT)
    assert first == {"output": EVENT}
    assert '"code": 413' in last["output"]
    assert "the job's output holds the whole answer" in last["output"]
    assert last["output"].endswith("data: [DONE]\n\n")


async def test_a_native_stream_ends_in_its_own_form() -> None:
    huge = {"choices": [{"tokens": ["x" * MAX_CHUNK_BYTES]}], "usage": {"input": 1, "output": 9}}
    (last,) = await deliver(Platform(), huge, ITEM)
    (choice,) = last["output"]["choices"]
    assert (choice["finish_reason"], choice["error"]["code"]) == ("error", 413)


@pytest.mark.parametrize("takes_bytes", [MAX_RESULT_BYTES, 1000])
async def test_a_result_beyond_the_limit_is_a_413(takes_bytes: int) -> None:
    size = 2000 if takes_bytes == 1000 else MAX_RESULT_BYTES
    *_, last = await deliver(Platform(takes_bytes), result={"output": ["x" * size]})
    error = json.loads(last["error"])
    assert (error["code"], error["type"]) == (413, "OutputTooLargeError")


async def test_a_jobs_id_cannot_leave_its_place_in_the_url() -> None:
    platform = Platform()
    await deliver(platform, EVENT, result={"output": []})
    assert [url for url, _ in platform.posts] == [
        "http://p/stream/job%2F..%2F1?x=1&isStream=false",
        "http://p/done/job%2F..%2F1?x=1&isStream=true",
    ]


class HoldingPlatform(Platform):
    """Holds every chunk, and takes results."""

    @asynccontextmanager
    async def post(self, url: str, *, data: bytes, **options: Any) -> AsyncIterator[Any]:
        if "/stream/" in url:
            await asyncio.Event().wait()
        async with super().post(url, data=data, **options) as response:
            yield response


@pytest.mark.parametrize("fails_at", ["while it is held", "before it is posted"])
async def test_a_failed_jobs_result_does_not_wait_for_a_chunk_that_the_platform_holds(
    monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    monkeypatch.setattr(cancellation, "ABANDON_SECONDS", 0.02)
    monkeypatch.setattr(cancellation, "FAREWELL_SECONDS", 0.02)
    platform, jobs = HoldingPlatform(), cancellation.Jobs()
    delivery = Delivery("http://p/done/$ID?x=1", "http://p/stream/$ID?x=1")

    async def stream() -> AsyncGenerator[Any, None]:
        yield EVENT

    async def job() -> None:
        lease = jobs.open(stream())
        if fails_at == "before it is posted":
            jobs.fail_all(DeadlineError("late"))
        with lease.posting():
            await delivery.stream_result(platform, {"output": EVENT}, JOB)
        with lease.posting():
            await delivery.stream_result(platform, {"output": "the stream is cut: not posted"}, JOB)
        await delivery.send_result(platform, {"error": "late"}, JOB, is_stream=True)

    task = asyncio.create_task(job())
    await asyncio.sleep(0.01)
    jobs.fail_all(DeadlineError("late"))
    await asyncio.wait_for(task, 2)
    assert [body for _, body in platform.posts] == [{"error": "late"}]


async def test_a_cancelled_job_does_not_wait_for_a_chunk_either() -> None:
    jobs = cancellation.Jobs()
    delivery = Delivery("http://p/done/$ID?x=1", "http://p/stream/$ID?x=1")

    async def stream() -> AsyncGenerator[Any, None]:
        yield EVENT

    async def job() -> None:
        with jobs.open(stream()).posting():
            await delivery.stream_result(HoldingPlatform(), {"output": EVENT}, JOB)

    task = asyncio.create_task(job())
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.wait({task}, timeout=1)
    assert task.cancelled()
