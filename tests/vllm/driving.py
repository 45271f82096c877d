"""What the tests in this folder share: jobs in, chunks out, and a look at what is left in the engine."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import Any

from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.native import vLLMEngine
from worker_vllm.engine.openai import OpenAIvLLMEngine
from worker_vllm.engine.record import JobRecord, current_record
from worker_vllm.job import JobInput
from worker_vllm.settings import WorkerSettings

ABORT_SECONDS = 0.1
"""How soon after a cancellation the engine's front end must hold nothing of the job."""
STEP_SECONDS = 5.0
"""An engine step and its report, generously: other programs may hold the machine."""


def stream(host: EngineHost, job_input: dict[str, Any], request_id: str = "job", **settings: Any) -> Any:
    """The chunks of one job, as the handler would drive them; the caller closes it."""
    job = JobInput.parse(job_input)
    kind = OpenAIvLLMEngine if job.kind == "route" else vLLMEngine
    return kind(host, WorkerSettings(**settings)).generate(job, request_id)


async def run(
    host: EngineHost, job_input: dict[str, Any], request_id: str = "job", **settings: Any
) -> list[Any]:
    """All chunks of one job."""
    return [chunk async for chunk in stream(host, job_input, request_id, **settings)]


async def run_recorded(
    host: EngineHost, job_input: dict[str, Any], **settings: Any
) -> tuple[list[Any], JobRecord]:
    """All chunks of one job, and what was counted."""
    record = JobRecord("job")

    async def recorded() -> list[Any]:
        current_record.set(record)
        return await run(host, job_input, **settings)

    return await asyncio.create_task(recorded()), record


async def collect(chunks: Any) -> tuple[list[Any], BaseException | None]:
    """What a stream yields before it ends or fails, and the failure."""
    got = []
    try:
        async with aclosing(chunks):
            async for chunk in chunks:
                got.append(chunk)
    except Exception as error:
        return got, error
    return got, None


async def settles(host: EngineHost, seconds: float = ABORT_SECONDS) -> bool:
    """Whether the engine's front end is empty within so many seconds."""
    return await _within(seconds, lambda: host.unfinished_requests == 0)


async def is_idle(host: EngineHost) -> bool:
    """Whether the scheduler reports, within a step, that nothing runs or waits and no KV block is held."""
    load = host.load
    return await _within(STEP_SECONDS, lambda: not (load.running or load.waiting or load.kv_cache_usage))


async def is_busy(host: EngineHost) -> bool:
    """Whether the scheduler reports work within a step."""
    return await _within(STEP_SECONDS, lambda: host.load.running > 0)


async def _within(seconds: float, condition: Any) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.005)
    return True


def text_of(items: list[dict[str, Any]], choice: int = 0) -> str:
    """The text of a native job's items."""
    return "".join("".join(item["choices"][choice]["tokens"]) for item in items)
