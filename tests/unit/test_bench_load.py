"""How a client reads an answer without decoding it."""

from __future__ import annotations

import asyncio
import time

import pytest

from worker_vllm.bench.load import Endpoint, Offer, has_token, pace, tokens_of
from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.watch import Watch

_ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
_WORD = b'data: {"choices":[{"index":0,"delta":{"content":"hi"}}]}\n\n'
_HALF = b'data: {"choices":[{"index":0,"text":""}]}\n\n'


@pytest.mark.parametrize(
    ("received", "expected"),
    [
        pytest.param(_ROLE, False, id="a chat's first event has the role alone"),
        pytest.param(_ROLE + _WORD, True, id="role and text in one chunk"),
        pytest.param(_WORD, True, id="text"),
        pytest.param(_HALF, True, id="a token that is half of a character"),
        pytest.param(b'data: {"choices":[{"index":0,"text": " a"}]}\n\n', True, id="spaces in the JSON"),
        pytest.param(b": keep-alive\n\n", False, id="a comment"),
        pytest.param(b'data: {"choices":[],"usage":{}}\n\n', False, id="usage"),
    ],
)
def test_the_first_token_is_the_first_event_that_brings_one(received: bytes, expected: bool) -> None:
    assert has_token(received) is expected


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        pytest.param({"usage": {"prompt_tokens": 3, "completion_tokens": 7}}, 7, id="an OpenAI object"),
        pytest.param({"choices": [{"tokens": ["a"]}], "usage": {"input": 3, "output": 4}}, 4, id="native"),
        pytest.param(
            [{"usage": {"output": 1}}, {"usage": {"output": 5}}], 5, id="native chunks are cumulative"
        ),
        pytest.param('data: {"usage": {"completion_tokens": 6}}\n\n', 6, id="SSE text with its usage"),
        pytest.param('data: {"choices":[{"index":0}]}\n\n' * 3, 3, id="SSE text without"),
        pytest.param([], 0, id="nothing"),
        pytest.param(None, 0, id="no output"),
        pytest.param({"choices": [], "usage": None}, 0, id="no usage"),
    ],
)
def test_tokens_are_counted_as_the_answer_reports_them(output: object, expected: int) -> None:
    assert tokens_of(output) == expected


def test_chunks_of_one_read_are_one_arrival() -> None:
    watch = Watch(0)
    watch.text()
    for _ in range(3):
        watch.text()
    watch.tokens = 4
    times = watch.result()
    assert times.chunks == 4 and len(times.gaps) <= 1


def test_an_answer_without_tokens_is_a_failure() -> None:
    assert Watch(0).result().error is not None


def test_a_chunk_without_text_does_not_end_the_wait_for_the_first_token() -> None:
    watch = Watch(0)
    watch.other()
    watch.tokens = 1
    assert watch.result().first is None


async def test_no_more_requests_are_in_flight_than_asked_for() -> None:
    flying, most = 0, 0

    async def send(offer: Offer) -> RequestTimes:
        nonlocal flying, most
        flying += 1
        most = max(most, flying)
        await asyncio.sleep(0.005)
        flying -= 1
        return Watch(offer.index).result()

    offers = [Offer(index, 0.0, "x") for index in range(7)]
    times = await pace(offers, send, start=time.monotonic(), concurrency=2)
    assert most == 2
    assert [one.index for one in times] == list(range(7))


async def test_a_request_waits_for_its_moment() -> None:
    sent: dict[int, float] = {}

    async def send(offer: Offer) -> RequestTimes:
        sent[offer.index] = time.monotonic()
        return Watch(offer.index).result()

    start = time.monotonic()
    await pace([Offer(0, 0.0, "x"), Offer(1, 0.1, "x")], send, start=start, concurrency=2)
    assert sent[1] - start >= 0.1 > sent[0] - start


def test_a_key_is_not_shown() -> None:
    assert "secret" not in repr(Endpoint(openai="http://x/v1", headers={"Authorization": "Bearer secret"}))
