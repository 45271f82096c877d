"""Failures in the engine: in mid-stream, before it, and for good."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests import models
from tests.vllm.conftest import build
from tests.vllm.driving import collect, is_busy, run, settles, stream
from worker_vllm import sse, vllm_compat
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.errors import ApplicationError, EngineDeadError, InternalError, RequestError, RetryableError
from worker_vllm.vllm_errors import translate

PARAMS = {"max_tokens": 8, "ignore_eos": True}
CHAT = {"messages": [{"role": "user", "content": "a"}], **PARAMS}
ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "a", **PARAMS},
    "/v1/responses": {"input": "a", "max_output_tokens": 8},
    "/v1/messages": {**CHAT},
}


def route(path: str) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": {**ROUTES[path], "stream": True}}


@pytest.fixture
def fail_after(tiny: EngineHost, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Exception], None]:
    """Let every request fail after so many outputs, in the engine's front end."""

    def install(outputs: int, error: Exception) -> None:
        generate = tiny.llm.generate

        async def failing(*args: Any, **options: Any) -> Any:
            real = generate(*args, **options)
            try:
                for _ in range(outputs):
                    yield await anext(real)
                raise error
            finally:
                await real.aclose()

        monkeypatch.setattr(tiny.llm, "generate", failing)

    return install


def engine_error(name: str = "GenerationError") -> Exception:
    return vllm_compat.load(name)()


@pytest.mark.parametrize("path", ROUTES)
async def test_a_stream_that_breaks_ends_with_an_error_event_and_fails(
    tiny: EngineHost, fail_after: Any, path: str
) -> None:
    fail_after(3, engine_error())
    parts, error = await collect(stream(tiny, route(path)))
    assert isinstance(error, (ApplicationError, InternalError)) and error.code == 500
    events = sse.EventDecoder().feed("".join(parts).encode())
    assert len(events) > 2
    last = [event for event in events if not sse.is_done(event)][-1]
    body = json.loads(sse.data_of(last))
    assert body["error"]["message"]
    assert last.startswith("data:") or "error" in last.partition("\n")[0]
    assert await settles(tiny)


async def test_a_parsed_stream_that_breaks_ends_with_an_error_object(
    tiny: EngineHost, fail_after: Any
) -> None:
    fail_after(3, engine_error())
    parts, error = await collect(stream(tiny, route("/v1/completions"), raw_openai_output=False))
    assert isinstance(error, ApplicationError)
    assert isinstance(parts[-1], list) and parts[-1][-1]["error"] == error.to_error()


async def test_a_native_stream_that_breaks_ends_with_an_error_item(tiny: EngineHost, fail_after: Any) -> None:
    fail_after(3, engine_error("EngineGenerateError"))
    items, error = await collect(stream(tiny, {"prompt": "a", "stream": True, "sampling_params": PARAMS}))
    assert isinstance(error, InternalError)
    assert items[-1]["choices"][0]["error"] == error.to_error()
    assert items[-1]["usage"]["output"] == 3
    assert await settles(tiny)


@pytest.mark.parametrize("path", ROUTES)
async def test_a_plain_answer_that_breaks_is_vllms_500(tiny: EngineHost, fail_after: Any, path: str) -> None:
    fail_after(0, engine_error())
    with pytest.raises(ApplicationError) as caught:
        await run(tiny, {"openai_route": path, "openai_input": ROUTES[path]})
    assert caught.value.code == 500


def test_exceptions_are_translated_by_type() -> None:
    load = vllm_compat.load
    wrapped = engine_error("EngineGenerateError")
    wrapped.__cause__ = ValueError("bad")
    cases: list[tuple[BaseException, type[Exception], int]] = [
        (load("EngineDeadError")(), EngineDeadError, 500),
        (engine_error("EngineGenerateError"), InternalError, 500),
        (wrapped, RequestError, 400),
        (engine_error(), InternalError, 500),
        (load("VLLMValidationError")("no", parameter="n", value=3), RequestError, 400),
        (TypeError("no"), RequestError, 400),
        (KeyError("no"), InternalError, 500),
        (RequestError("ours"), RequestError, 400),
    ]
    optional: list[tuple[str, tuple[Any, ...], type[Exception], int]] = [
        ("VLLMNotFoundError", ("no",), ApplicationError, 404),
        ("VLLMUnprocessableEntityError", ("no image",), ApplicationError, 422),
        ("GracefulHTTPError", ("busy", 503), RetryableError, 429),
        ("RetryableRequestError", ("again",), RetryableError, 503),
    ]
    for name, args, expected, code in optional:
        if load(name) is not None:
            cases.append((load(name)(*args), expected, code))
    for error, expected, code in cases:
        meaning = translate(error)
        assert isinstance(meaning, expected), error
        assert meaning.code == code


def test_a_validation_error_names_its_field_and_not_its_value() -> None:
    error = vllm_compat.load("VLLMValidationError")("out of range", parameter="n", value="secret")
    meaning = translate(error)
    assert (meaning.param, meaning.message) == ("n", "out of range")


def test_pydantics_words_become_one_sentence() -> None:
    with pytest.raises(ValueError, match="validation error") as caught:
        vllm_compat.load("ChatCompletionRequest")(messages=[{"role": "user", "content": "a"}], seed="x")
    meaning = translate(caught.value)
    assert meaning.param == "seed"
    assert meaning.message.startswith("seed: ") and "\n" not in meaning.message


@pytest.fixture(scope="module")
def doomed_engine(vllm_environment: None) -> Iterator[EngineHost]:
    host = build(models.tiny(), "--enforce-eager", "--served-model-name", "tiny", "--max-model-len", "512")
    yield host
    host.stop()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def doomed(doomed_engine: EngineHost) -> AsyncIterator[EngineHost]:
    await doomed_engine.ready()
    yield doomed_engine
    await doomed_engine.close()


async def test_a_dead_engine_ends_every_job_at_once_and_for_good(doomed: EngineHost) -> None:
    long = {"max_tokens": 400, "ignore_eos": True}
    jobs: list[dict[str, Any]] = [
        {"prompt": "a", "sampling_params": long},
        {"prompt": "a", "sampling_params": long, "stream": True},
        {"openai_route": "/v1/completions", "openai_input": {"prompt": "a", **long}},
        {"openai_route": "/v1/completions", "openai_input": {"prompt": "a", **long, "stream": True}},
        {"openai_route": "/v1/messages", "openai_input": {**CHAT, **long, "stream": True}},
        {"openai_route": "/v1/responses", "openai_input": {"input": "a", "stream": True}},
    ]
    running = [asyncio.create_task(collect(stream(doomed, job, f"job-{i}"))) for i, job in enumerate(jobs)]
    assert await is_busy(doomed)
    (process,) = doomed.llm.engine_core.resources.engine_manager.processes
    os.kill(process.pid, signal.SIGKILL)
    for _, error in await asyncio.wait_for(asyncio.gather(*running), 30):
        assert isinstance(error, EngineDeadError) and error.fatal
    assert doomed.errored
    for job in jobs:
        _, error = await asyncio.wait_for(collect(stream(doomed, job)), 5)
        assert isinstance(error, EngineDeadError)
