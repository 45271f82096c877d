"""Whatever an engine says, what goes out is JSON that the SDK can send, and holds the same text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from tests.fakes import FakeHost, FakeLLM, FakeOutput, FakePart
from tests.fuzz.driving import Worker, check, error_of, errors_logged
from tests.fuzz.inputs import JSON, fuzz
from worker_vllm.wire import clean, clean_text

TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=20)
FLOATS = st.floats() | st.sampled_from([float("nan"), float("inf"), float("-inf"), -0.0])


@dataclass
class FakeLogprob:
    """vLLM's Logprob."""

    logprob: float
    rank: int | None
    decoded_token: str | None


LOGPROBS = st.dictionaries(
    st.integers(0, 9), st.builds(FakeLogprob, FLOATS, st.none(), st.none() | TEXT), max_size=3
)
STEPS = st.lists(st.tuples(TEXT, st.none() | st.lists(LOGPROBS, max_size=2)), min_size=1, max_size=5)


class SpeakingLLM(FakeLLM):
    """Says these texts, with these log probabilities."""

    def __init__(self, steps: list[tuple[str, Any]]) -> None:
        super().__init__()
        self._steps = steps

    def generate(self, prompt: Any, params: Any, request_id: str, **_: Any) -> AsyncGenerator[Any, None]:
        async def speak() -> AsyncGenerator[Any, None]:
            whole = params.output_kind.name == "FINAL_ONLY"
            steps = [("".join(text for text, _ in self._steps), self._steps[0][1])] if whole else self._steps
            for number, (text, logprobs) in enumerate(steps):
                reason = "stop" if number == len(steps) - 1 else None
                part = FakePart(0, text, [1], logprobs, reason, text if reason else None)
                yield FakeOutput([part], [1, 2], prompt_logprobs=None if number else logprobs)
                await asyncio.sleep(0)

        return speak()


@fuzz(0.2)
@given(steps=STEPS, stream=st.booleans(), size=st.sampled_from([None, 1, 2]))
def test_a_native_answer_goes_out_as_json(
    steps: list[tuple[str, Any]], stream: bool, size: int | None
) -> None:
    async def one() -> list[Any]:
        worker = Worker(FakeHost(SpeakingLLM(steps)), default_batch_size=size)
        return await worker.run({"prompt": "a", "stream": stream})

    with errors_logged() as lines:
        chunks = asyncio.run(one())
    assert lines == []
    assert check(chunks) is None
    said = "".join("".join(item["choices"][0]["tokens"]) for item in chunks)
    pieces = [text for text, _ in steps] if stream else ["".join(text for text, _ in steps)]
    assert said == "".join(map(clean_text, pieces))


def answering(response: Any) -> Starlette:
    async def answer(request: Request) -> Response:
        await request.body()
        found: Response = response()
        return found

    return Starlette(routes=[Route("/v1/chat/completions", answer, methods=["POST"])])


def ask(app: Starlette, *, stream: bool, **settings: Any) -> list[Any]:
    async def one() -> list[Any]:
        job = {"openai_input": {"messages": [], "stream": stream}}
        return await Worker(FakeHost(app=app), **settings).run(job)

    return asyncio.run(one())


@fuzz(0.1)
@given(JSON, st.booleans())
def test_a_plain_answer_goes_out_as_json(value: Any, escaped: bool) -> None:
    """Escapes may hold lone surrogates, and Python's reader takes NaN."""
    content = json.dumps({"choices": value}, ensure_ascii=True).encode()
    (chunk,) = ask(answering(lambda: Response(content, media_type="application/json")), stream=False)
    json.dumps(chunk, ensure_ascii=False, allow_nan=False).encode()
    assert chunk == clean({"choices": value})


@fuzz(0.1)
@given(st.binary(max_size=60), st.sampled_from(["text/plain", "audio/wav", "", "text/html; charset=utf-8"]))
def test_an_answer_that_is_no_json_goes_out_as_json(content: bytes, kind: str) -> None:
    chunks = ask(answering(lambda: Response(content, headers={"content-type": kind})), stream=False)
    assert check(chunks) is None
    assert len(chunks) == 1


@fuzz(0.2)
@given(
    content=st.lists(TEXT.map(lambda text: f"data: {json.dumps({'text': text})}\n\n"), max_size=6),
    cuts=st.lists(st.integers(1, 40), max_size=20),
    size=st.sampled_from([None, 2]),
)
def test_a_streamed_answer_goes_out_whole_wherever_it_is_cut(
    content: list[str], cuts: list[int], size: int | None
) -> None:
    data = "".join(content).encode() + b"data: [DONE]\n\n"

    async def pieces() -> AsyncGenerator[bytes, None]:
        left = data
        for cut in cuts:
            yield left[:cut]
            left = left[cut:]
        yield left

    app = answering(lambda: StreamingResponse(pieces(), media_type="text/event-stream"))
    chunks = ask(app, stream=True, default_batch_size=size)
    assert check(chunks) is None
    assert "".join(chunks) == data.decode()


@fuzz(0.2)
@given(st.binary(max_size=80), st.booleans())
def test_a_stream_of_anything_ends(content: bytes, raw: bool) -> None:
    """vLLM sends no such stream; the worker must not hang or send what is no JSON text all the same."""
    app = answering(lambda: StreamingResponse(iter([content]), media_type="text/event-stream"))
    chunks = ask(app, stream=True, raw_openai_output=raw)
    for chunk in chunks:
        json.dumps(chunk, ensure_ascii=False, allow_nan=False).encode()
    if raw:
        assert error_of(chunks) is None
