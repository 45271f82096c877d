"""Embeddings, score and rerank with a real sentence model."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tests.vllm.driving import run, run_recorded
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.errors import RequestError, RouteNotFoundError

FOOD = "A man is eating food."
BREAD = "A man is eating a piece of bread."
HORSE = "A man is riding a horse."
COSINE = 0.755


def route(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


async def test_embeddings_have_the_known_cosine(embedding: EngineHost) -> None:
    (answer,), record = await run_recorded(embedding, route("/v1/embeddings", {"input": [FOOD, BREAD]}))
    first, second = (entry["embedding"] for entry in answer["data"])
    cosine = sum(a * b for a, b in zip(first, second, strict=True)) / (
        math.hypot(*first) * math.hypot(*second)
    )
    assert cosine == pytest.approx(COSINE, abs=0.005)
    assert record.prompt_tokens == answer["usage"]["prompt_tokens"]
    assert (record.output_tokens, record.first_token_at) == (0, None)


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
async def test_score_gives_the_same_number(embedding: EngineHost, path: str) -> None:
    (answer,) = await run(embedding, route(path, {"text_1": FOOD, "text_2": [BREAD, HORSE]}))
    scores = [entry["score"] for entry in answer["data"]]
    assert scores[0] == pytest.approx(COSINE, abs=0.005)
    assert scores[0] > scores[1]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
async def test_rerank_puts_the_nearest_first(embedding: EngineHost, path: str) -> None:
    (answer,) = await run(embedding, route(path, {"query": FOOD, "documents": [HORSE, BREAD]}))
    assert [entry["index"] for entry in answer["results"]] == [1, 0]
    assert answer["results"][0]["relevance_score"] == pytest.approx(COSINE, abs=0.005)


async def test_binary_embeddings_come_as_base64(embedding: EngineHost) -> None:
    (answer,) = await run(embedding, route("/v1/embeddings", {"input": FOOD, "encoding_format": "bytes"}))
    assert answer["content_type"].startswith("application/octet-stream")
    assert answer["size_bytes"] > 0 and answer["data_b64"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses"])
async def test_generating_routes_are_a_404(embedding: EngineHost, path: str) -> None:
    with pytest.raises(RouteNotFoundError) as caught:
        await run(embedding, route(path, {"prompt": "a"}))
    assert "embed" in caught.value.message


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_native_job_is_refused(embedding: EngineHost, wants_stream: bool) -> None:
    with pytest.raises(RequestError):
        await run(embedding, {"prompt": "a", "stream": wants_stream})
    (answer,) = await run(embedding, route("/v1/embeddings", {"input": FOOD}))
    assert answer["data"]
