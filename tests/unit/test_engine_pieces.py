"""A native item beyond the platform's limit goes out as several that say the same."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes import FakeHost, FakeLLM
from worker_vllm.engine.native import vLLMEngine
from worker_vllm.engine.pieces import split
from worker_vllm.job import JobInput
from worker_vllm.settings import WorkerSettings

TEXT = st.text(alphabet=st.characters(), max_size=3000)
POSITION = st.dictionaries(
    st.text("0123456789", min_size=1), st.just({"logprob": -0.5, "rank": 1}), max_size=9
)
CHOICE = st.fixed_dictionaries(
    {"tokens": st.lists(TEXT, max_size=3)},
    optional={"logprobs": st.lists(POSITION, max_size=9), "finish_reason": st.just("stop")},
)
ITEM = st.fixed_dictionaries(
    {"choices": st.lists(CHOICE, min_size=1, max_size=3), "usage": st.just({"input": 1, "output": 2})},
    optional={"prompt_index": st.just(3), "prompt_logprobs": st.lists(st.none() | POSITION, max_size=9)},
)


def joined(pieces: list[dict[str, Any]]) -> dict[str, Any]:
    """What a reader has who puts the pieces together."""
    whole: dict[str, Any] = {"choices": [{"tokens": ""} for _ in pieces[0]["choices"]]}
    for piece in pieces:
        whole.setdefault("prompt_logprobs", []).extend(piece.get("prompt_logprobs", ()))
        for choice, part in zip(whole["choices"], piece["choices"], strict=True):
            choice["tokens"] += "".join(part["tokens"])
            choice.setdefault("logprobs", []).extend(part.get("logprobs", ()))
            choice.update({key: part[key] for key in ("finish_reason",) if key in part})
        whole.update({key: piece[key] for key in ("usage", "prompt_index") if key in piece})
    return whole


@given(ITEM)
def test_pieces_are_small_and_joined_they_are_the_item(item: dict[str, Any]) -> None:
    pieces = list(split(item, 4000))
    assert joined(pieces) == joined([item])
    assert all(
        len(json.dumps(piece, ensure_ascii=False).encode("utf-8", "replace")) <= 4000 for piece in pieces
    )


def test_a_small_item_is_left_alone() -> None:
    item = {"choices": [{"tokens": ["a"], "finish_reason": "stop"}], "usage": {"input": 1, "output": 1}}
    assert list(split(item, 1000)) == [item]


def test_what_ends_an_answer_is_in_its_last_piece() -> None:
    item = {
        "choices": [{"tokens": ["a" * 5000], "finish_reason": "length", "stop_reason": None}],
        "usage": {},
    }
    *first, last = split(item, 1000)
    assert last["choices"][0]["finish_reason"] == "length"
    assert all(piece["choices"][0].keys() == {"tokens"} for piece in first)


async def test_a_streamed_job_keeps_to_the_limit() -> None:
    llm = FakeLLM()
    llm.enqueue("a" * 5000, "b")
    engine = vLLMEngine(FakeHost(llm), WorkerSettings(max_chunk_bytes=1000))
    items = [item async for item in engine.generate(JobInput.parse({"prompt": "x", "stream": True}), "job")]
    assert all(len(json.dumps(item)) <= 1000 for item in items)
    assert "".join("".join(item["choices"][0]["tokens"]) for item in items) == "a" * 5000 + "b"
