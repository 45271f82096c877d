"""JSON on the wire, submissions, chunk splitting, and URLs without a question mark."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from worker_vllm.emulator.policy import Policy
from worker_vllm.emulator.submission import parse_submission
from worker_vllm.emulator.wire import WireError, decode, encode, error_reply, split_path_query
from worker_vllm.emulator.worker_api import split_chunk


def test_keys_are_sorted_at_every_depth_and_text_is_not_escaped() -> None:
    assert encode({"b": {"d": 1, "c": "é"}, "a": None}) == '{"a":null,"b":{"c":"é","d":1}}'.encode()


def test_a_lone_surrogate_becomes_a_replacement_character() -> None:
    assert encode({"x": "a\ud800b😀"}) == '{"x":"a\ufffdb😀"}'.encode()


@pytest.mark.parametrize("body", [b"", b"nope", b"NaN", b'{"x": Infinity}', b"\xff", b"[" * 100_000])
def test_what_is_not_json_is_a_400(body: bytes) -> None:
    with pytest.raises(WireError) as caught:
        decode(body)
    assert caught.value.status == 400


def test_errors_have_the_platform_s_shape() -> None:
    reply = error_reply(404, "job not found")
    assert reply.status == 404
    assert json.loads(reply.body) == {"detail": "job not found", "status": 404, "title": "Not Found"}
    assert json.loads(error_reply(524, "late").body)["title"] == "A Timeout Occurred"


@pytest.mark.parametrize(
    ("segment", "query", "expected"),
    [
        ("pod-1", "gpu=x&job_in_progress=0", ("pod-1", {"gpu": "x", "job_in_progress": "0"})),
        ("pod-1&batch_size=4&job_in_progress=0", "", ("pod-1", {"batch_size": "4", "job_in_progress": "0"})),
        ("pod-1", "", ("pod-1", {})),
    ],
)
def test_parameters_are_found_with_and_without_a_question_mark(
    segment: str, query: str, expected: tuple[str, dict[str, str]]
) -> None:
    assert split_path_query(segment, query) == expected


def test_a_submission_keeps_what_the_worker_is_to_see() -> None:
    body = {
        "input": {"a": 1},
        "webhook": "http://127.0.0.1/x",
        "s3Config": {"accessId": "i"},
        "policy": {"executionTimeout": 5000, "ttl": 10_000, "lowPriority": True},
        "unknown": 1,
    }
    submission = parse_submission(body, Policy())
    assert submission.job_input == {"a": 1}
    assert submission.extras == {"webhook": "http://127.0.0.1/x", "s3Config": {"accessId": "i"}}
    assert (submission.execution_timeout_ms, submission.ttl_ms) == (5000, 10_000)


def test_an_empty_input_is_accepted_as_the_live_service_does() -> None:
    assert parse_submission({"input": {}}, Policy()).job_input == {}


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {},
        {"input": None},
        {"input": 1, "webhook": 5},
        {"input": 1, "webhook": "ftp://x"},
        {"input": 1, "policy": []},
        {"input": 1, "policy": {"ttl": "1"}},
        {"input": 1, "policy": {"ttl": True}},
        {"input": 1, "policy": {"ttl": 9_999}},
        {"input": 1, "policy": {"executionTimeout": 4_999}},
        {"input": 1, "policy": {"executionTimeout": 604_800_001}},
    ],
)
def test_a_malformed_submission_is_a_400(body: Any) -> None:
    with pytest.raises(WireError) as caught:
        parse_submission(body, Policy())
    assert caught.value.status == 400


def test_times_out_of_range_can_be_clamped_instead() -> None:
    policy = dataclasses.replace(Policy(), policy_out_of_range="clamp")
    submission = parse_submission({"input": 1, "policy": {"ttl": 1, "executionTimeout": 10**12}}, policy)
    assert (submission.ttl_ms, submission.execution_timeout_ms) == (10_000, 604_800_000)


def test_a_large_text_is_split_between_characters() -> None:
    text = "aé巴😀" * 50
    pieces = split_chunk(text, 16)
    assert "".join(pieces) == text
    assert all(0 < len(piece.encode()) <= 16 for piece in pieces)


def test_what_fits_or_is_not_text_stays_whole() -> None:
    assert split_chunk("small", 16) == ["small"]
    assert split_chunk({"big": "x" * 100}, 16) == [{"big": "x" * 100}]
