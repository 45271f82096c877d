"""The handler as the SDK drives it, with scripted engines."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from worker_vllm import errors
from worker_vllm.engine.record import JobRecord, current_record
from worker_vllm.job import JobInput
from worker_vllm.serverless.cancellation import Jobs
from worker_vllm.serverless.handler import make_handler

CUT = object()


class ScriptedEngine:
    """Yields its chunks, then raises what it was given; at `CUT` it waits until the job is cut short, at an
    event for that."""

    def __init__(self, *chunks: Any, then: BaseException | None = None) -> None:
        self.chunks = chunks
        self.then = then
        self.seen: list[tuple[JobInput, str, JobRecord | None]] = []
        self.closed = 0
        self.cut = asyncio.Event()

    async def generate(self, job: JobInput, request_id: str) -> AsyncGenerator[Any, None]:
        self.seen.append((job, request_id, current_record.get()))
        try:
            for chunk in self.chunks:
                if chunk is CUT:
                    await self.cut.wait()
                elif isinstance(chunk, asyncio.Event):
                    await chunk.wait()
                else:
                    yield chunk
            if self.then is not None:
                raise self.then
        finally:
            self.closed += 1


class Serving:
    def __init__(self, engine: ScriptedEngine, *, errors_as_body: bool = False) -> None:
        self.jobs = Jobs()
        self.native = engine
        self.openai = engine
        self.request_timeout_seconds: float | None = None
        self.first_token_seconds: float | None = None
        self.errors_as_body = errors_as_body
        self.raw_openai_output = True
        self.reported: list[errors.WorkerError] = []
        self.engine = engine
        self.begun = False
        self.cuts = True

    async def ready(self) -> None:
        await asyncio.sleep(0)

    def report(self, error: errors.WorkerError) -> None:
        self.reported.append(error)

    def has_begun(self, record: JobRecord) -> bool:
        return self.begun

    async def cut_short(self, record: JobRecord) -> bool:
        self.engine.cut.set()
        return self.cuts


def native(**fields: Any) -> dict[str, Any]:
    return {"id": "j1", "input": {"prompt": "hi", **fields}}


def chat(**fields: Any) -> dict[str, Any]:
    body = {"messages": [{"role": "user", "content": "hi"}], **fields}
    return {"id": "j1", "input": {"openai_route": "/v1/chat/completions", "openai_input": body}}


async def items(serving: Serving, job: dict[str, Any]) -> list[Any]:
    async def drive() -> list[Any]:
        found = []
        async for item in make_handler(serving)(job):
            found.append(item)
            if isinstance(item, dict) and item.get("error"):
                break  # as the SDK does
        return found

    return await asyncio.get_running_loop().create_task(drive())


def failure(item: Any) -> dict[str, Any]:
    assert list(item) == ["error"]
    assert isinstance(item["error"], str)
    return json.loads(item["error"])


def test_it_is_a_function_that_the_sdk_detects() -> None:
    assert inspect.isasyncgenfunction(make_handler(Serving(ScriptedEngine())))


async def test_chunks_pass_and_the_engine_is_closed() -> None:
    engine = ScriptedEngine({"a": 1}, {"a": 2})
    assert await items(Serving(engine), native()) == [{"a": 1}, {"a": 2}]
    assert engine.closed == 1


async def test_the_request_id_carries_the_job_id_as_one_safe_word() -> None:
    engine = ScriptedEngine()
    await items(Serving(engine), {**native(), "id": "a/b\n../..\u2028é" + "x" * 500})
    request_id = engine.seen[0][1]
    assert request_id.startswith("a_b_.._.._")
    assert request_id.isascii()
    assert len(request_id) == 128


async def test_the_engine_finds_the_jobs_record() -> None:
    engine = ScriptedEngine()
    await items(Serving(engine), chat())
    record = engine.seen[0][2]
    assert record
    assert (record.job_id, record.route, record.error_code) == ("j1", "/v1/chat/completions", None)
    assert record.finished_at is not None


@pytest.mark.parametrize(
    ("error", "kind", "code"),
    [
        (errors.RequestError("no", param="top_p"), "BadRequestError", 400),
        (errors.DeadlineError("late"), "TimeoutError", 504),
        (errors.OverloadedError("full"), "RateLimitError", 429),
        (errors.InternalError("hm"), "InternalServerError", 500),
    ],
)
async def test_an_error_is_text_with_message_type_param_and_code(
    error: errors.WorkerError, kind: str, code: int
) -> None:
    serving = Serving(ScriptedEngine(then=error))
    (item,) = await items(serving, native())
    assert failure(item) == {"message": error.message, "type": kind, "param": error.param, "code": code}
    assert serving.reported == []


async def test_an_unforeseen_exception_is_logged_and_not_sent(caplog: pytest.LogCaptureFixture) -> None:
    (item,) = await items(Serving(ScriptedEngine(then=ValueError("key=hunter2 /root"))), native())
    assert failure(item)["code"] == 500
    assert "hunter2" not in item["error"]
    assert "hunter2" in caplog.text


async def test_a_fatal_error_is_reported() -> None:
    error = errors.EngineDeadError("gone")
    serving = Serving(ScriptedEngine(then=error))
    await items(serving, native())
    assert serving.reported == [error]


async def test_malformed_input_never_reaches_an_engine() -> None:
    engine = ScriptedEngine()
    (item,) = await items(Serving(engine), {"id": "j", "input": {"prompt": "x", "nonsense": 1}})
    assert failure(item)["param"] == "nonsense"
    assert engine.seen == []


async def test_text_that_json_cannot_carry_is_made_whole() -> None:
    engine = ScriptedEngine({"tokens": ["\ud83d\ude00 \udcff"], "logprob": float("-inf")})
    (item,) = await items(Serving(engine), native())
    assert item == {"tokens": ["😀 \ufffd"], "logprob": None}
    json.dumps(item, ensure_ascii=False, allow_nan=False).encode()


async def test_an_engine_that_broke_off_has_said_so_itself() -> None:
    event = 'data: {"error": {}}\n\n'
    engine = ScriptedEngine("data: 1\n\n", event, then=errors.InternalError("it broke"))
    *chunks, last = await items(Serving(engine), chat(stream=True))
    assert chunks == ["data: 1\n\n", event]
    assert failure(last)["message"] == "it broke"


async def cut_off(engine: ScriptedEngine, job: dict[str, Any]) -> list[Any]:
    """The items of a job that is failed from outside after its first chunk."""
    serving = Serving(engine)

    async def drive() -> list[Any]:
        found = []
        async for item in make_handler(serving)(job):
            found.append(item)
            serving.jobs.fail_all(errors.ShuttingDownError("bye"))
        return found

    return await asyncio.get_running_loop().create_task(drive())


async def test_a_raw_stream_cut_from_outside_ends_with_an_error_event() -> None:
    first, event, last = await cut_off(ScriptedEngine("data: 1\n\n", "data: 2\n\n"), chat(stream=True))
    assert first == "data: 1\n\n"
    assert json.loads(event.removeprefix("data: ").split("\n\n")[0])["error"]["code"] == 503
    assert event.endswith("\n\ndata: [DONE]\n\n")
    assert failure(last)["code"] == 503


async def test_a_parsed_stream_cut_from_outside_ends_with_an_error_object() -> None:
    _, event, _ = await cut_off(ScriptedEngine([{"n": 1}], [{"n": 2}]), chat(stream=True))
    assert event[0]["error"]["type"] == "ServiceUnavailableError"


async def test_a_native_stream_cut_from_outside_ends_with_an_error_inside_a_choice() -> None:
    """At the top of an item the SDK would take it for the job's result."""
    item = {"choices": [{"tokens": ["a"]}], "usage": {"input": 1, "output": 1}}
    _, event, last = await cut_off(ScriptedEngine(item, item), native(stream=True))
    assert event["choices"][0]["finish_reason"] == "error"
    assert event["usage"] == item["usage"]
    assert "error" not in event
    assert failure(last)["code"] == 503


async def test_errors_as_body_gives_openai_clients_their_error_object_as_text() -> None:
    body = {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}
    engine = ScriptedEngine(then=errors.ApplicationError(400, body["error"], body))
    (text,) = await items(Serving(engine, errors_as_body=True), chat())
    assert json.loads(text) == body
    event = 'data: {"error": {}}\n\ndata: [DONE]\n\n'  # a stream gets its error event from the engine
    streaming = ScriptedEngine(event, then=errors.ApplicationError(400, body["error"], body))
    assert await items(Serving(streaming, errors_as_body=True), chat(stream=True)) == [event]


async def test_errors_as_body_leaves_vllms_own_faults_failed() -> None:
    body = {"error": {"message": "no", "type": "InternalServerError", "param": None, "code": 500}}
    engine = ScriptedEngine(then=errors.ApplicationError(500, body["error"], body))
    assert failure((await items(Serving(engine, errors_as_body=True), chat()))[-1])["code"] == 500


async def test_errors_as_body_leaves_native_jobs_and_the_workers_own_faults_alone() -> None:
    refused = ScriptedEngine(then=errors.RequestError("no"))
    assert failure((await items(Serving(refused, errors_as_body=True), native()))[-1])["code"] == 400
    broken = ScriptedEngine(then=errors.EngineDeadError("gone"))
    assert failure((await items(Serving(broken, errors_as_body=True), chat()))[-1])["code"] == 500


async def test_closing_the_handler_closes_the_engine() -> None:
    engine = ScriptedEngine("a", "b")
    serving = Serving(engine)

    async def drive() -> None:
        handler = make_handler(serving)(chat())
        await anext(handler)
        await handler.aclose()

    await asyncio.get_running_loop().create_task(drive())
    await serving.jobs.wait_until_empty()
    assert engine.closed == 1


async def test_one_line_is_logged_per_job_and_holds_no_text(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "worker_vllm")
    await items(Serving(ScriptedEngine({"tokens": ["an answer"]})), native(prompt="a question"))
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("job j1 route=native ")
    assert "answer" not in line
    assert "question" not in line


@pytest.mark.parametrize(
    ("policy", "seconds"),
    [
        ({"executionTimeout": 5000}, 4.5),
        ({"executionTimeout": 60_000}, 59.0),
        ({}, 7.0),
        (None, 7.0),
        ("x", 7.0),
    ],
)
async def test_the_platforms_time_limit_goes_before_the_workers(policy: Any, seconds: float) -> None:
    """A little earlier than the platform's own time-out, so that the worker's answer counts."""
    serving = Serving(ScriptedEngine("a", "b"))
    serving.request_timeout_seconds = 7.0

    async def drive(older: float) -> list[Any]:
        found = []
        async for item in make_handler(serving)({**chat(stream=True), "policy": policy}):
            found.append(item)
            serving.jobs.grow_older(older)
        return found

    assert "error" not in (await asyncio.get_running_loop().create_task(drive(seconds / 2 - 0.1)))[-1]
    last = (await asyncio.get_running_loop().create_task(drive(seconds + 0.1)))[-1]
    assert failure(last)["code"] == 504


async def test_a_first_token_that_does_not_come_is_a_504_and_one_that_came_counts() -> None:
    async def drive(chunks: int) -> list[Any]:
        serving = Serving(ScriptedEngine(*(["a"] * chunks)))
        serving.first_token_seconds = 2.0
        waits = asyncio.Event()

        async def ready() -> None:
            if not chunks:
                await waits.wait()

        serving.ready = ready  # type: ignore[method-assign]
        asyncio.get_running_loop().call_later(0.01, serving.jobs.grow_older, 3.0)
        found = []
        async for item in make_handler(serving)(chat(stream=True)):
            found.append(item)
            await asyncio.sleep(0.02)
        return found

    assert failure((await asyncio.get_running_loop().create_task(drive(0)))[-1])["code"] == 504
    assert await asyncio.get_running_loop().create_task(drive(2)) == ["a", "a"]


async def test_a_failed_jobs_record_names_type_and_field_but_not_the_text() -> None:
    engine = ScriptedEngine(then=errors.RequestError("you said: secret", param="messages"))
    await items(Serving(engine), native())
    record = engine.seen[0][2]
    assert record is not None
    assert (record.error_code, record.error_type) == (400, "BadRequestError(messages)")


async def at_its_deadline(serving: Serving, job: dict[str, Any]) -> list[Any]:
    asyncio.get_running_loop().call_later(0.01, serving.jobs.grow_older, 100.0)
    serving.request_timeout_seconds = 50.0
    return await items(serving, job)


@pytest.mark.parametrize("job", [native(), chat()])
async def test_a_plain_answer_that_runs_out_of_time_comes_out_as_far_as_it_is(job: dict[str, Any]) -> None:
    serving = Serving(ScriptedEngine({"whole": 1}, CUT, {"part": 2}))
    *_, last = await at_its_deadline(serving, job)
    error = failure(last)
    assert (error["code"], error["type"]) == (504, "TimeoutError")
    assert error["output"] == [{"whole": 1}, {"part": 2}]


async def test_an_answer_that_cannot_be_cut_short_is_late_all_the_same() -> None:
    serving = Serving(ScriptedEngine(CUT, CUT))
    serving.cuts = False
    assert "output" not in failure((await at_its_deadline(serving, native()))[-1])
    hanging = Serving(ScriptedEngine({"whole": 1}, asyncio.Event()))
    assert failure((await at_its_deadline(hanging, native()))[-1])["output"] == [{"whole": 1}]


async def test_what_goes_wrong_while_it_is_cut_short_does_not_hide_the_deadline() -> None:
    refused = errors.ApplicationError(500, {"message": "aborted"}, None)
    assert (
        failure((await at_its_deadline(Serving(ScriptedEngine(CUT, then=refused)), chat()))[-1])["code"]
        == 504
    )
    dead = errors.EngineDeadError("gone")
    assert (
        failure((await at_its_deadline(Serving(ScriptedEngine(CUT, then=dead)), chat()))[-1])["code"] == 500
    )


async def test_a_partial_answer_that_is_too_large_is_left_out() -> None:
    serving = Serving(ScriptedEngine(CUT, {"part": "x" * 1_000_001}))
    error = failure((await at_its_deadline(serving, native()))[-1])
    assert error["code"] == 504
    assert "output" not in error


async def test_a_stream_that_runs_out_of_time_is_not_cut_short() -> None:
    serving = Serving(ScriptedEngine("data: 1\n\n", CUT))
    first, event, last = await at_its_deadline(serving, chat(stream=True))
    assert first == "data: 1\n\n"
    assert '"code": 504' in event
    assert "output" not in failure(last)
    assert not serving.engine.cut.is_set()


async def test_a_plain_answers_first_token_counts_though_it_comes_at_the_end() -> None:
    serving = Serving(ScriptedEngine(CUT, {"whole": 1}))
    serving.first_token_seconds, serving.begun = 2.0, True
    asyncio.get_running_loop().call_later(0.01, serving.jobs.grow_older, 3.0)
    asyncio.get_running_loop().call_later(0.02, serving.engine.cut.set)
    assert await items(serving, native()) == [{"whole": 1}]


@pytest.mark.parametrize(
    ("policy", "late"),
    [
        ({"ttl": 40_000}, True),
        ({"ttl": 80_000}, False),
        ({"ttl": 40_000, "executionTimeout": 90_000}, True),
        ({"executionTimeout": float("nan"), "ttl": float("inf")}, False),
        ({"executionTimeout": True, "ttl": "soon"}, False),
    ],
)
async def test_a_jobs_life_ends_with_its_ttl(policy: Any, late: bool) -> None:
    serving = Serving(ScriptedEngine("a", "b"))
    serving.request_timeout_seconds = 70.0

    async def drive() -> list[Any]:
        found = []
        async for item in make_handler(serving)({**chat(stream=True), "policy": policy}):
            found.append(item)
            serving.jobs.grow_older(25.0)
        return found

    found = await asyncio.get_running_loop().create_task(drive())
    assert isinstance(found[-1], dict) is late


@pytest.mark.parametrize(
    "job_input",
    [
        {"openai_input": {"stream": True, "n": 10_000}},
        {"openai_route": "/v1/chat/completions", "openai_input": {"stream": "true", "stop": ["a"] * 999}},
        {"route": "http://elsewhere/", "body": {"a": 1}, "stream": True},
        {"openai_route": "/v1/completions", "stream": True, "openai_input": [1]},
    ],
)
async def test_a_routes_stream_that_cannot_be_read_ends_with_an_error_event(job_input: Any) -> None:
    """The gateway shows a stream's reader nothing of a failed job's error."""
    event, last = await items(Serving(ScriptedEngine()), {"id": "j", "input": job_input})
    assert json.loads(event.removeprefix("data: ").split("\n\n")[0])["error"]["code"] == 400
    assert event.endswith("\n\ndata: [DONE]\n\n")
    assert failure(last)["code"] == 400
    parsed = Serving(ScriptedEngine())
    parsed.raw_openai_output = False
    (event,), last = await items(parsed, {"id": "j", "input": job_input})
    assert (event["error"]["code"], failure(last)["code"]) == (400, 400)


@pytest.mark.parametrize(
    "job_input", [{"prompt": 3, "stream": True}, {"openai_input": {"n": 999}}, "x", None, {}]
)
async def test_what_is_no_routes_stream_gets_no_event(job_input: Any) -> None:
    (last,) = await items(Serving(ScriptedEngine()), {"id": "j", "input": job_input})
    assert failure(last)["code"] == 400


async def test_errors_as_body_counts_for_what_cannot_be_read() -> None:
    serving = Serving(ScriptedEngine(), errors_as_body=True)
    (text,) = await items(serving, {"id": "j", "input": {"openai_input": {"n": 999}}})
    assert json.loads(text)["error"]["param"] == "n"
    (event,) = await items(serving, {"id": "j", "input": {"openai_input": {"n": 999, "stream": True}}})
    assert event.endswith("data: [DONE]\n\n")


async def test_a_routes_stream_that_is_late_before_it_begins_gets_its_event() -> None:
    event, last = await at_its_deadline(Serving(ScriptedEngine(CUT)), chat(stream=True))
    assert '"code": 504' in event
    assert failure(last)["code"] == 504
