from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.fakes import FakeHost
from worker_vllm.engine.openai import OpenAIvLLMEngine
from worker_vllm.errors import (
    ApplicationError,
    EngineDeadError,
    RequestError,
    RouteForbiddenError,
    RouteNotFoundError,
)
from worker_vllm.job import JobInput
from worker_vllm.settings import WorkerSettings

CHAT = "/v1/chat/completions"
CHUNKS = ['data: {"choices":[{"text":"é"}]}\n\n', 'data: {"choices":[{"text":"b"}]}\n\n', "data: [DONE]\n\n"]
ERROR = {"message": "no", "type": "InternalServerError", "param": None, "code": 500}
ERROR_EVENT = f"data: {json.dumps({'error': ERROR})}\n\n"


class App:
    """One POST route of vLLM's, answering what the test says, and what it was asked."""

    def __init__(self, answer: Any, path: str = CHAT) -> None:
        self.answer = answer
        self.requests: list[Any] = []
        self.closed = asyncio.Event()
        self.asgi = Starlette(routes=[Route(path, self._call, methods=["POST"])])

    async def _call(self, request: Request) -> Response:
        self.requests.append((await request.json(), dict(request.headers)))
        if not isinstance(self.answer, list):
            return self.answer
        return StreamingResponse(self._events(), media_type="text/event-stream")

    async def _events(self) -> Any:
        try:
            for event in self.answer:
                if event is None:
                    await asyncio.Event().wait()
                yield event
        finally:
            self.closed.set()


def stream(app: App, body: dict[str, Any], path: str = CHAT, **settings: Any) -> Any:
    host = FakeHost(app=app.asgi)
    job = JobInput.parse({"openai_route": path, "openai_input": body})
    return OpenAIvLLMEngine(host, WorkerSettings(**settings)).generate(job, "job-1")


async def run(app: App, body: dict[str, Any] | None = None, path: str = CHAT, **settings: Any) -> list[Any]:
    return [chunk async for chunk in stream(app, body or {"messages": []}, path, **settings)]


async def test_a_missing_model_is_the_first_name_and_the_job_id_travels() -> None:
    app = App(JSONResponse({"id": 1}))
    assert await run(app, {"a": 1}) == [{"id": 1}]
    ((body, headers),) = app.requests
    assert body == {"a": 1, "model": "model"}
    assert headers["x-request-id"] == "job-1"


async def test_a_given_model_is_left_alone() -> None:
    app = App(JSONResponse({"id": 1}))
    await run(app, {"model": "alias"})
    assert app.requests[0][0]["model"] == "alias"


async def test_a_response_gets_its_id_from_the_job_unless_it_has_one() -> None:
    app = App(JSONResponse({"id": 1}), "/v1/responses")
    await run(app, {"input": "a"}, "/v1/responses")
    await run(app, {"input": "a", "request_id": "mine"}, "/v1/responses")
    assert [body["request_id"] for body, _ in app.requests] == ["resp_job-1", "mine"]


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (JSONResponse({"a": [1]}), {"a": [1]}),
        (PlainTextResponse("# HELP"), "# HELP"),
        (Response(), {"status": "ok"}),
        (Response("{}", media_type="application/problem+json"), {}),
        (
            Response(b"\x00\x01", media_type="audio/wav"),
            {"data_b64": "AAE=", "content_type": "audio/wav", "size_bytes": 2},
        ),
    ],
)
async def test_a_plain_answer_comes_by_its_content_type(answer: Any, expected: Any) -> None:
    assert await run(App(answer)) == [expected]


@pytest.mark.parametrize(
    ("answer", "status", "error"),
    [
        (JSONResponse({"error": {**ERROR, "param": "model", "code": 404}}, 404), 404, {"param": "model"}),
        (JSONResponse({"type": "error", "error": {"type": "x", "message": "m"}}, 400), 400, {"message": "m"}),
        (JSONResponse({"detail": "Method Not Allowed"}, 405), 405, {"message": "Method Not Allowed"}),
        (JSONResponse({"error": "Unauthorized"}, 401), 401, {"message": "Unauthorized"}),
        (PlainTextResponse("broken", 502), 502, {"message": "broken"}),
        (Response(status_code=500), 500, {"message": "vLLM answered HTTP 500"}),
    ],
)
async def test_a_refusal_keeps_its_error_object(answer: Any, status: int, error: dict[str, Any]) -> None:
    with pytest.raises(ApplicationError) as caught:
        await run(App(answer))
    assert caught.value.to_error()["code"] == status
    assert error.items() <= caught.value.to_error().items()


async def test_an_answer_that_holds_an_error_fails_the_job() -> None:
    with pytest.raises(ApplicationError, match="no"):
        await run(App(JSONResponse({"status": "failed", "error": ERROR})))
    assert await run(App(JSONResponse({"status": "completed", "error": None})))


async def test_raw_chunks_are_whole_events_as_they_came() -> None:
    app = App([piece.encode()[i : i + 3] for piece in CHUNKS for i in range(0, len(piece.encode()), 3)])
    parts = await run(app, {"stream": True})
    assert "".join(parts) == "".join(CHUNKS)
    assert all(part.endswith("\n\n") for part in parts)


async def test_parsed_chunks_are_lists_of_objects_without_the_end() -> None:
    parts = await run(App(CHUNKS), {"stream": True}, raw_openai_output=False)
    assert [chunk for part in parts for chunk in part] == [
        {"choices": [{"text": "é"}]},
        {"choices": [{"text": "b"}]},
    ]


async def test_keep_alives_are_dropped() -> None:
    parts = await run(App([": ping\n\n", *CHUNKS]), {"stream": True})
    assert "".join(parts) == "".join(CHUNKS)


async def test_chosen_sizes_count_events() -> None:
    sizes = {"default_batch_size": 2, "batch_size_growth_factor": 1.0}
    parts = await run(App([*CHUNKS[:2], *CHUNKS]), {"stream": True}, **sizes)
    assert [part.count("data:") for part in parts] == [2, 2, 1]


async def test_no_chunk_exceeds_the_cap() -> None:
    app = App([f'data: {{"a":"{"x" * 400}"}}\n\n' for _ in range(20)])
    parts = await run(app, {"stream": True}, max_chunk_bytes=1000)
    assert len("".join(parts)) > 8000
    assert all(len(part.encode()) <= 1000 for part in parts)


@pytest.mark.parametrize("raw", [True, False])
async def test_an_error_event_in_mid_stream_is_delivered_and_raised(raw: bool) -> None:
    app = App([CHUNKS[0], ERROR_EVENT, CHUNKS[2]])
    parts = []
    with pytest.raises(ApplicationError) as caught:
        async for part in stream(app, {"stream": True}, raw_openai_output=raw):
            parts.append(part)
    assert caught.value.to_error() == ERROR
    if raw:
        assert "".join(parts) == CHUNKS[0] + ERROR_EVENT + CHUNKS[2]
    else:
        assert [chunk for part in parts for chunk in part][-1] == {"error": ERROR}


@pytest.mark.parametrize("raw", [True, False])
async def test_a_refused_stream_holds_its_error_event(raw: bool) -> None:
    """A reader of the stream learns of the refusal from nowhere else."""
    parts = []
    with pytest.raises(ApplicationError):
        async for part in stream(
            App(JSONResponse({"error": ERROR}, 500)), {"stream": True}, raw_openai_output=raw
        ):
            parts.append(part)
    expected = f"data: {json.dumps({'error': ERROR})}\n\ndata: [DONE]\n\n" if raw else [{"error": ERROR}]
    assert parts == [expected]


async def test_a_stream_of_an_unknown_route_is_refused_in_the_stream_too() -> None:
    parts = []
    with pytest.raises(RouteNotFoundError):
        async for part in stream(App(JSONResponse({})), {"stream": True}, "/v1/nonsense"):
            parts.append(part)
    assert len(parts) == 1 and '"code": 404' in parts[0] and parts[0].endswith("data: [DONE]\n\n")


async def test_text_that_speaks_of_errors_is_no_error() -> None:
    events = ['data: {"id":"error","choices":[]}\n\n', 'data: {"choices":[{"text":"\\"error\\":"}]}\n\n']
    assert "".join(await run(App(events), {"stream": True})) == "".join(events)


async def test_a_named_error_event_is_recognised() -> None:
    event = 'event: error\ndata: {"type":"error","error":{"type":"internal_error","message":"m"}}\n\n'
    parts = []
    with pytest.raises(ApplicationError, match="m") as caught:
        async for part in stream(App([event], "/v1/messages"), {"stream": True}, "/v1/messages"):
            parts.append(part)
    assert parts == [event]
    assert caught.value.code == 500


async def test_a_dead_engine_is_told_apart_from_a_refusal() -> None:
    for answer in ([CHUNKS[0], ERROR_EVENT, CHUNKS[2]], JSONResponse({"error": ERROR}, 500)):
        host = FakeHost(app=App(answer).asgi)
        host.llm.errored = True
        job = JobInput.parse({"openai_route": CHAT, "openai_input": {"stream": True}})
        with pytest.raises(EngineDeadError):
            async for _ in OpenAIvLLMEngine(host, WorkerSettings()).generate(job, "job"):
                pass


async def test_closing_in_mid_stream_closes_the_apps_stream() -> None:
    app = App([CHUNKS[0], None])
    chunks = stream(app, {"stream": True})
    await anext(chunks)
    await chunks.aclose()
    await asyncio.wait_for(app.closed.wait(), 1)


async def test_cancelling_a_waiting_job_closes_the_apps_stream() -> None:
    app = App([CHUNKS[0], None])
    task = asyncio.create_task(run(app, {"stream": True}))
    await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.wait([task])
    await asyncio.wait_for(app.closed.wait(), 1)


async def test_a_closed_route_is_refused_before_the_app_is_asked() -> None:
    app = App(JSONResponse({}), "/sleep")
    with pytest.raises(RouteForbiddenError):
        await run(app, {"a": 1}, "/sleep")
    assert app.requests == []
    assert await run(app, {"a": 1}, "/sleep", worker_routes="all") == [{}]


@pytest.mark.parametrize("field", ["chat_template", "mm_processor_kwargs", "kv_transfer_params"])
async def test_fields_of_the_operators_are_refused_until_opened(field: str) -> None:
    app = App(JSONResponse({}))
    with pytest.raises(RequestError) as caught:
        await run(app, {field: {"a": 1}})
    assert caught.value.param == field
    host = FakeHost(app=app.asgi)
    host.args.trust_request_chat_template = host.args.trust_request_mm_kwargs = True
    host.args.kv_transfer_config = {"kv_connector": "x"}
    job = JobInput.parse({"openai_route": CHAT, "openai_input": {field: {"a": 1}}})
    assert [chunk async for chunk in OpenAIvLLMEngine(host, WorkerSettings()).generate(job, "j")] == [{}]


async def test_what_the_model_cannot_do_is_the_callers_error() -> None:
    error = {"message": "not supported", "type": "NotImplementedError", "param": None, "code": 501}
    with pytest.raises(ApplicationError) as caught:
        await run(App(JSONResponse({"error": error}, 501)))
    assert (caught.value.code, caught.value.type) == (400, "NotImplementedError")


AMBIGUOUS = r"(\w{1,20} ?){1,20}"
STRUCTURED = "structured_outputs"
GRAMMAR = 'root ::= root root | "" | [^a]'


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": {"regex": AMBIGUOUS}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"pattern": AMBIGUOUS}}}},
        {"tools": [{"function": {"parameters": {"properties": {"a": {"pattern": AMBIGUOUS}}}}}]},
        {"structured_outputs": {"grammar": GRAMMAR}},
        {"guided_grammar": GRAMMAR},
        {"sampling_params": {"structured_outputs": {"grammar": GRAMMAR}}},
        {"response_format": {"type": "structural_tag", "format": {"type": "grammar", "grammar": GRAMMAR}}},
    ],
)
async def test_a_constraint_that_would_stall_the_engine_never_reaches_it(body: dict[str, Any]) -> None:
    app = App(JSONResponse({"id": 1}))
    with pytest.raises(RequestError, match="too many ways") as caught:
        await run(app, body)
    assert (caught.value.param, app.requests) == (next(iter(body)).replace("guided_grammar", STRUCTURED), [])


@pytest.mark.parametrize("constraint", [{"regex": AMBIGUOUS}, {"grammar": GRAMMAR}])
async def test_a_backend_that_stops_by_itself_gets_every_constraint(constraint: dict[str, Any]) -> None:
    app = App(JSONResponse({"id": 1}))
    host = FakeHost(app=app.asgi)
    host.args.structured_outputs_config = {"backend": "guidance"}
    job = JobInput.parse({"openai_input": {"structured_outputs": constraint}})
    assert [c async for c in OpenAIvLLMEngine(host, WorkerSettings()).generate(job, "job")] == [{"id": 1}]


async def test_token_ids_beyond_the_context_never_reach_the_app() -> None:
    app = App(JSONResponse({"id": 1}), "/v1/completions")
    with pytest.raises(RequestError, match="100000 tokens") as caught:
        await run(app, {"prompt": [1] * 100_000}, "/v1/completions")
    assert (caught.value.param, app.requests) == ("prompt", [])
    assert await run(app, {"prompt": [1] * 999, "truncate_prompt_tokens": 5}, "/v1/completions") == [
        {"id": 1}
    ]
