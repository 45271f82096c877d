"""Whatever a job holds, the worker answers it or says what is wrong with it: no traceback, no 5xx.

The engine is scripted here; tests/vllm/test_fuzz.py sends the same to the real one.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from hypothesis import given
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fakes import FakeHost
from tests.fuzz.driving import Worker, check, errors_logged
from tests.fuzz.inputs import ANY_INPUT, JOB_IDS, NATIVE_INPUT, ROUTE_INPUT, fuzz
from worker_vllm.engine.routes import INFERENCE_ROUTES
from worker_vllm.errors import RequestError
from worker_vllm.job import JobInput
from worker_vllm.job_fields import MAX_INTEGER, MAX_SEQUENCES


async def answer(request: Request) -> Response:
    """An app that takes every body and says what reached it."""
    body = await request.body()
    given: Any = json.loads(body) if body else {}
    if given.get("stream"):
        return StreamingResponse(iter(["data: {}\n\n", "data: [DONE]\n\n"]), media_type="text/event-stream")
    # a completion's shape, since beam search reads it, and what reached the app
    choices = [{"index": index, "text": "a", "finish_reason": "stop"} for index in range(2)]
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    seen = {"path": request.url.path, "fields": sorted(given)}
    return JSONResponse({"choices": choices, "usage": usage, **seen})


def app() -> Starlette:
    return Starlette(
        routes=[Route(path, answer, methods=["GET", "POST"]) for path in sorted(INFERENCE_ROUTES)]
    )


def numbers(value: Any) -> Any:
    if isinstance(value, dict):
        value = value.values()
    if isinstance(value, list | tuple) or not isinstance(value, str | int | float | bool | None):
        for item in value:
            yield from numbers(item)
    elif isinstance(value, int):
        yield value


def test_a_beam_search_is_answered() -> None:
    run({"prompt": [1], "use_beam_search": True, "sampling_params": {"max_tokens": 2}}, "job")


@fuzz(0.4)
@given(ANY_INPUT)
def test_any_input_is_read_or_refused_by_name(job_input: Any) -> None:
    before = repr(job_input)
    try:
        job = JobInput.parse(job_input)
    except RequestError as error:
        assert 400 <= error.code < 500
        assert "\n" not in error.message
        json.dumps(error.to_error(), ensure_ascii=False, allow_nan=False).encode()
    else:
        json.dumps(job.model_dump(), ensure_ascii=False, allow_nan=False).encode()
        assert len(job.prompts) * job.sampling.params.get("n", 1) <= MAX_SEQUENCES
        assert all(abs(number) <= MAX_INTEGER + 1 for number in numbers(job.sampling.params.copy()))
    assert repr(job_input) == before


def run(job_input: Any, job_id: Any) -> None:
    host = FakeHost(app=app())

    async def one() -> None:
        worker = Worker(host)
        check(await worker.run(job_input, job_id))
        assert worker.reports == []
        await worker.jobs.wait_until_empty()
        assert host.unfinished_requests == 0

    with errors_logged() as lines:
        asyncio.run(one())
    assert lines == []


@fuzz(0.3)
@given(job_input=NATIVE_INPUT, job_id=JOB_IDS)
def test_no_native_job_is_the_workers_fault(job_input: Any, job_id: Any) -> None:
    run(job_input, job_id)


@fuzz(0.3)
@given(job_input=ROUTE_INPUT, job_id=JOB_IDS)
def test_no_call_of_a_route_is_the_workers_fault(job_input: Any, job_id: Any) -> None:
    run(job_input, job_id)
