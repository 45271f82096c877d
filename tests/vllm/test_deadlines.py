"""A job that runs out of time on the real engine: what there is of a plain answer comes with the 504."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fuzz.driving import Worker, error_of
from tests.vllm.driving import is_busy, is_idle, run, text_of
from worker_vllm.engine.lifecycle import EngineHost

LONG = {"temperature": 0, "max_tokens": 480, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "hello there"}], **LONG}
COMPLETION = {"prompt": "hello there", **LONG}


async def cut(host: EngineHost, job: dict[str, Any]) -> dict[str, Any]:
    """The error of a job whose time runs out while the engine is at it."""
    worker = Worker(host)
    task = asyncio.create_task(worker.run(job))
    assert await is_busy(host)
    worker.jobs.grow_older(100.0)
    error = error_of(await task)
    assert error is not None
    assert await is_idle(host)
    return error


@pytest.mark.parametrize("n", [1, 2])
async def test_a_native_answers_beginning_comes_with_its_504(tiny: EngineHost, n: int) -> None:
    warm = {} if n == 1 else {"temperature": 1, "seed": 1}
    error = await cut(tiny, {"prompt": "hello there", "sampling_params": {**LONG, "n": n, **warm}})
    assert (error["code"], error["type"]) == (504, "TimeoutError")
    (item,) = error["output"]
    assert [choice["finish_reason"] for choice in item["choices"]] == ["abort"] * n
    if n == 1:
        (whole,) = await run(tiny, {"prompt": "hello there", "sampling_params": LONG})
        assert text_of([whole]).startswith(text_of([item]))
        assert item["usage"]["output"] < whole["usage"]["output"]


async def test_prompts_that_were_answered_are_whole(tiny: EngineHost) -> None:
    error = await cut(tiny, {"prompt": ["hello", "there"], "sampling_params": LONG})
    assert {item["prompt_index"] for item in error["output"]} == {0, 1}


@pytest.mark.parametrize(("route", "body"), [("chat/completions", CHAT), ("completions", COMPLETION)])
async def test_a_routes_plain_answer_comes_in_its_own_form(
    tiny: EngineHost, route: str, body: dict[str, Any]
) -> None:
    error = await cut(tiny, {"openai_route": f"/v1/{route}", "openai_input": body})
    assert error["code"] == 504
    (answer,) = error["output"]
    assert answer["choices"][0]["finish_reason"] == "abort"


async def test_a_plain_answers_first_token_is_seen_before_its_end(tiny: EngineHost) -> None:
    worker = Worker(tiny)
    worker.first_token_seconds = 50.0  # type: ignore[assignment]
    worker.request_timeout_seconds = None
    task = asyncio.create_task(worker.run({"prompt": "hello there", "sampling_params": LONG}))
    assert await is_busy(tiny)
    await asyncio.sleep(0.05)
    worker.jobs.grow_older(60.0)
    assert error_of(await task) is None
