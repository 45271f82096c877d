"""Jobs that name a route, against a real engine: plain and streamed, raw and parsed, right and wrong."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.vllm.driving import collect, run, run_recorded, stream
from worker_vllm import sse
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.errors import ApplicationError, RequestError, RouteForbiddenError, RouteNotFoundError

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY = {"temperature": 0, "max_tokens": 16}


def route(path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


def chunks_of(parts: list[str]) -> list[Any]:
    """The JSON objects of raw parts, each of which must hold whole events."""
    objects = []
    for part in parts:
        decoder = sse.EventDecoder()
        events = decoder.feed(part.encode())
        assert not decoder.flush() and "".join(events) == part
        objects += [json.loads(sse.data_of(event)) for event in events if not sse.is_done(event)]
    return objects


def text_of(chunks: list[Any]) -> str:
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join((choice.get("delta", {}).get("content") or choice.get("text") or "") for choice in choices)


async def test_a_chat_answers(demo: EngineHost) -> None:
    (answer,) = await run(demo, route("/v1/chat/completions", {"messages": QUESTION, **GREEDY}))
    assert "Paris" in answer["choices"][0]["message"]["content"]
    assert answer["model"] == "demo"
    assert answer["id"] == "chatcmpl-job"


@pytest.mark.parametrize("text", ["🦊👩‍👧🇫🇷", "東京 天気"])
async def test_stream_joins_to_the_plain_answer(demo: EngineHost, text: str) -> None:
    body = {"prompt": f"{text}\n{text}\n{text}\n{text}\n", "temperature": 0, "max_tokens": 24}
    (plain,) = await run(demo, route("/v1/completions", body))
    answer = plain["choices"][0]["text"]
    assert text in answer
    streamed = route("/v1/completions", {**body, "stream": True})
    raw = await run(demo, streamed)
    assert text_of(chunks_of(raw)) == answer
    assert raw[-1].endswith("data: [DONE]\n\n")
    parsed = await run(demo, streamed, raw_openai_output=False)
    assert text_of([chunk for part in parsed for chunk in part]) == answer


async def test_a_chat_stream_has_usage_where_it_is_asked_for(demo: EngineHost) -> None:
    body = {"messages": QUESTION, **GREEDY, "stream": True, "stream_options": {"include_usage": True}}
    parts, record = await run_recorded(demo, route("/v1/chat/completions", body))
    chunks = chunks_of(parts)
    assert "Paris" in text_of(chunks)
    usage = chunks[-1]["usage"]
    assert (record.prompt_tokens, record.output_tokens) == (
        usage["prompt_tokens"],
        usage["completion_tokens"],
    )
    assert record.finish_reason == "stop" and record.first_token_at is not None


async def test_a_slow_consumer_gets_merged_chunks(tiny: EngineHost) -> None:
    body = {"prompt": "a", "max_tokens": 60, "ignore_eos": True, "stream": True}
    parts = []
    async for part in stream(tiny, route("/v1/completions", body)):
        parts.append(part)
        await asyncio.sleep(0.1)
    assert len(parts) < 30


async def test_chosen_batch_sizes_count_events(tiny: EngineHost) -> None:
    body = {"prompt": "a", "max_tokens": 12, "ignore_eos": True, "stream": True}
    sizes = {"default_batch_size": 4, "min_batch_size": 2, "batch_size_growth_factor": 2.0}
    parts = await run(tiny, route("/v1/completions", body), **sizes)
    events = [part.count("data: ") for part in parts]
    assert events[:-1] == [2] + [4] * (len(events) - 2)
    assert 0 < events[-1] <= 4


async def test_two_answers_are_told_apart(tiny: EngineHost) -> None:
    body = {"prompt": "a", "max_tokens": 4, "n": 2, "ignore_eos": True}
    (answer,) = await run(tiny, route("/v1/completions", body))
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    parts = await run(tiny, route("/v1/completions", {**body, "stream": True}))
    assert {chunk["choices"][0]["index"] for chunk in chunks_of(parts)} == {0, 1}


WITHOUT_MODEL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": QUESTION, "max_tokens": 2},
    "/v1/completions": {"prompt": "a", "max_tokens": 2},
    "/v1/responses": {"input": "a", "max_output_tokens": 2},
    "/v1/messages": {"messages": QUESTION, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": QUESTION},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5, 6]},
}


@pytest.mark.parametrize("given", [None, "", "tiny", "second-name"])
@pytest.mark.parametrize("path", WITHOUT_MODEL)
async def test_every_served_name_works_and_none_means_the_first(
    tiny: EngineHost, path: str, given: str | None
) -> None:
    named = {} if given is None else {"model": given}
    (answer,) = await run(tiny, route(path, {**WITHOUT_MODEL[path], **named}))
    assert isinstance(answer, dict)
    if "model" in answer:
        assert answer["model"] == "tiny"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("wants_stream", [False, True])
async def test_an_unknown_model_is_vllms_own_404(tiny: EngineHost, path: str, wants_stream: bool) -> None:
    body = {**WITHOUT_MODEL[path], "model": "nobody", "stream": wants_stream}
    with pytest.raises(ApplicationError) as caught:
        await run(tiny, route(path, body))
    error = caught.value.to_error()
    assert error["code"] == 404
    assert error["type"] == "NotFoundError"
    assert "nobody" in error["message"]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
async def test_named_events_stay_whole_and_in_order(tiny: EngineHost, path: str) -> None:
    body = {**WITHOUT_MODEL[path], "stream": True}
    parts, record = await run_recorded(tiny, route(path, body), raw_openai_output=False)
    assert all(isinstance(part, str) for part in parts)
    decoder = sse.EventDecoder()
    events = [event for part in parts for event in decoder.feed(part.encode())]
    names = [event.partition("\n")[0].removeprefix("event: ") for event in events]
    assert names[0] in ("response.created", "message_start")
    assert any(name in ("response.completed", "response.incomplete", "message_stop") for name in names)
    assert record.output_tokens == 2


async def test_the_job_id_is_in_the_ids_of_responses(tiny: EngineHost) -> None:
    (answer,) = await run(tiny, route("/v1/responses", WITHOUT_MODEL["/v1/responses"]), request_id="j-1")
    assert answer["id"] == "resp_j-1"


async def test_models_lists_every_name(tiny: EngineHost) -> None:
    for nothing in (None, {}):
        (answer,) = await run(tiny, route("/v1/models", nothing))
        assert [model["id"] for model in answer["data"]] == ["tiny", "second-name", "shifted"]


async def test_text_and_empty_answers_come_by_content_type(tiny: EngineHost) -> None:
    assert await run(tiny, {"route": "/health"}) == [{"status": "ok"}]
    (metrics,) = await run(tiny, {"route": "/metrics"})
    assert "vllm:" in metrics
    (version,) = await run(tiny, {"route": "/version"})
    assert version["version"]


MALFORMED: dict[str, tuple[str, dict[str, Any], int]] = {
    "no messages": ("/v1/chat/completions", {}, 400),
    "messages of a wrong type": ("/v1/chat/completions", {"messages": 5}, 400),
    "negative max_tokens": ("/v1/completions", {"prompt": "a", "max_tokens": -5}, 400),
    "temperature as words": ("/v1/completions", {"prompt": "a", "temperature": "hot"}, 400),
    "too long": ("/v1/completions", {"prompt": [5] * 600}, 400),
    "bad schema": ("/v1/completions", {"prompt": "a", "structured_outputs": {"regex": "((("}}, 400),
    "token out of range": ("/v1/completions", {"prompt": [2**30]}, 400),
    "closed field": ("/v1/chat/completions", {"messages": QUESTION, "chat_template": "x"}, 400),
    "messages without max_tokens": ("/v1/messages", {"messages": QUESTION}, 400),
    "wrong method": ("/v1/models", {"a": 1}, 405),
}


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_job_fails_alone(tiny: EngineHost, case: str, wants_stream: bool) -> None:
    path, body, code = MALFORMED[case]
    parts, error = await collect(stream(tiny, route(path, {**body, "stream": wants_stream})))
    assert isinstance(error, RequestError)
    assert error.code == code and error.message
    # what vLLM finds only after its 200 is an event of the stream, then the failure
    assert not parts or (wants_stream and '"error"' in parts[-1])
    (answer,) = await run(tiny, route("/v1/completions", {"prompt": "a", "max_tokens": 1}))
    assert answer["usage"]["completion_tokens"] == 1


async def test_vllms_error_object_arrives_intact(tiny: EngineHost) -> None:
    with pytest.raises(ApplicationError) as caught:
        await run(tiny, route("/v1/completions", {"prompt": "a", "model": "nobody"}))
    assert caught.value.to_error() == caught.value.body["error"]
    assert caught.value.param == "model"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/score", "/v1/nothing", "/"])
async def test_a_route_outside_the_models_task_is_a_404(tiny: EngineHost, path: str) -> None:
    with pytest.raises(RouteNotFoundError) as caught:
        await run(tiny, route(path, {"input": "a"}))
    assert caught.value.to_error()["code"] == 404


@pytest.mark.parametrize(
    "path", ["/v1/load_lora_adapter", "/sleep", "/collective_rpc", "/scale_elastic_ep", "/openapi.json"]
)
async def test_operator_routes_are_closed_until_opened(tiny: EngineHost, path: str) -> None:
    with pytest.raises(RouteForbiddenError) as caught:
        await run(tiny, route(path, {"a": 1}))
    assert caught.value.to_error()["code"] == 403


async def test_an_opened_route_is_reached(tiny: EngineHost) -> None:
    for setting in ("all", "inference,/is_scaling_elastic_ep"):
        (answer,) = await run(tiny, route("/is_scaling_elastic_ep", {"a": 1}), worker_routes=setting)
        assert answer == {"is_scaling_elastic_ep": False}


async def test_beam_search_is_counted_by_its_answer(demo: EngineHost) -> None:
    body = {"prompt": "The capital of France is", "use_beam_search": True, "n": 2, "max_tokens": 4}
    (answer,), record = await run_recorded(demo, route("/v1/completions", body))
    assert record.prompt_tokens == answer["usage"]["prompt_tokens"] == 5
    assert record.output_tokens == answer["usage"]["completion_tokens"]
