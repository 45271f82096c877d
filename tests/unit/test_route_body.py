from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    MAX_INPUTS,
    MAX_LOGPROBS,
    MAX_MESSAGES,
    MAX_N,
    MAX_PROMPTS,
    MAX_SCHEMA_CHARACTERS,
    OPERATOR_FIELDS,
)
from worker_vllm.route_body import operator_fields, read_body

SCHEMA = {"type": "object"}
MESSAGE = {"role": "user", "content": "x"}
IMAGE = {"type": "image_url", "image_url": {"url": "http://example.org/"}}


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = {"a": value}
    return value


def read(body: Any) -> dict[str, Any]:
    return read_body(body, "openai_input", [])


def refusal(body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(body)
    return caught.value


def test_what_the_worker_has_no_word_in_passes_unchanged() -> None:
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "日本"}]}],
        "best_of": 2,
        "some_field_of_next_year": {"a": None},
        "temperature": "hot",
        "response_format": {"type": "x"},
        "structured_outputs": {"jsn": 1},
    }
    assert read(body) == body


@pytest.mark.parametrize(
    ("value", "stream"), [("true", True), ("False", False), (True, True), (False, False)]
)
def test_stream_is_a_strict_boolean(value: Any, stream: bool) -> None:
    """user-problems 18: "true" as text was false on the OpenAI path."""
    assert read({"stream": value}) == {"stream": stream}


def test_stream_null_stays_null() -> None:
    assert read({"stream": None}) == {"stream": None}


@pytest.mark.parametrize("value", ["yes", 1, 0, "", [], {}])
def test_any_other_stream_is_refused(value: Any) -> None:
    assert refusal({"stream": value}).param == "stream"


def test_extra_body_is_unwrapped() -> None:
    """user-problems 19: clients send the argument of the OpenAI SDK as a field."""
    assert read({"a": 1, "extra_body": {"b": 2, "a": 1, "c": None}}) == {"a": 1, "b": 2}
    assert read({"extra_body": None}) == {}


@pytest.mark.parametrize("body", [{"a": 1, "extra_body": {"a": 2}}, {"extra_body": "x"}])
def test_a_contradicting_extra_body_is_refused(body: Any) -> None:
    assert refusal(body).param in ("a", "extra_body")


def test_stream_may_stand_in_extra_body() -> None:
    assert read({"extra_body": {"stream": "true"}}) == {"stream": True}


@pytest.mark.parametrize(
    ("body", "outputs"),
    [
        ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        ({"guided_regex": "a"}, {"regex": "a"}),
        ({"guided_choice": ["a"], "guided_json": None}, {"choice": ["a"]}),
        (
            {"guided_grammar": "g", "guided_whitespace_pattern": " "},
            {"grammar": "g", "whitespace_pattern": " "},
        ),
        ({"extra_body": {"guided_json": SCHEMA}}, {"json": SCHEMA}),
        ({"guided_json": SCHEMA, "structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        ({"guided_json": SCHEMA, "structured_outputs": None}, {"json": SCHEMA}),
    ],
)
def test_guided_fields_become_structured_outputs(body: dict[str, Any], outputs: dict[str, Any]) -> None:
    assert read(body) == {"structured_outputs": outputs}


def test_guided_fields_that_are_null_vanish() -> None:
    assert read({"guided_json": None, "response_format": None}) == {"response_format": None}


def test_a_bad_guided_field_is_refused_by_name() -> None:
    assert refusal({"guided_json": "{"}).param == "guided_json"
    assert refusal({"guided_json": SCHEMA, "structured_outputs": {"regex": "a"}}).param == "guided_json"


def test_the_guided_backend_is_dropped_with_a_warning() -> None:
    warnings: list[str] = []
    assert read_body({"guided_decoding_backend": "outlines"}, "body", warnings) == {}
    assert len(warnings) == 1
    assert "outlines" not in warnings[0]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"n": MAX_N + 1}, "n"),
        ({"n": 1e9}, "n"),
        ({"best_of": MAX_N + 1}, "best_of"),
        ({"logprobs": MAX_LOGPROBS + 1}, "logprobs"),
        ({"top_logprobs": MAX_LOGPROBS + 1}, "top_logprobs"),
        ({"prompt_logprobs": MAX_LOGPROBS + 1}, "prompt_logprobs"),
        ({"prompt": ["a"] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"prompt": [[1]] * (MAX_PROMPTS + 1)}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 100}, "n"),
        ({"input": ["a"] * (MAX_INPUTS + 1)}, "input"),
        ({"documents": ["a"] * (MAX_INPUTS + 1)}, "documents"),
        ({"stop": ["a"] * 100}, "stop"),
        ({"stop": "a" * 2000}, "stop"),
        ({"stop": ["a" * 2000]}, "stop"),
        ({"stop_sequences": ["a"] * 100}, "stop_sequences"),
        ({"bad_words": ["a" * 2000]}, "bad_words"),
        ({"logit_bias": {str(token): 1 for token in range(10_001)}}, "logit_bias"),
        ({"n": "1000"}, "n"),
        ({"top_k": 2**70}, "top_k"),
        ({"max_tokens": "1e300"}, "max_tokens"),
        ({"sampling_params": {"n": 1000}}, "n"),
        ({"sampling_params": {"stop": ["a"] * 100}}, "stop"),
        ({"sampling_params": {"structured_outputs": {"regex": "y" * 10_000}}}, "structured_outputs.regex"),
        ({"messages": [[MESSAGE]] * 100, "n": 100}, "n"),
        ({"messages": [MESSAGE] * (MAX_MESSAGES + 1)}, "messages"),
        ({"messages": [[MESSAGE] * (MAX_MESSAGES + 1)]}, "messages"),
        ({"input": [MESSAGE] * (MAX_MESSAGES + 1)}, "input"),
        ({"messages": [{"role": "user", "content": [IMAGE] * 200}] * 2}, "messages"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": [IMAGE] * 300}]}]},
            "messages",
        ),
        ({"images": ["http://example.org/"] * 300}, "images"),
        ({"tools": [{}] * 600}, "tools"),
        ({"tools": [{"function": {"description": "x" * 600_000}}]}, "tools"),
        ({"tools": [{"function": {"parameters": nested(90)}}]}, "tools"),
        ({"text": {"format": {"schema": {"x": "y" * MAX_SCHEMA_CHARACTERS}}}}, "text"),
        ({"output_config": {"format": nested(90)}}, "output_config"),
        ({"structured_outputs": {"choice": ["x" * 5000]}}, "structured_outputs.choice"),
        ({"response_format": {"x": "y" * MAX_SCHEMA_CHARACTERS}}, "response_format"),
        ({"structured_outputs": {"regex": "y" * 10_000}}, "structured_outputs.regex"),
    ],
)
def test_what_would_stall_other_jobs_is_refused_by_name(body: dict[str, Any], param: str) -> None:
    error = refusal(body)
    assert error.param == param
    assert "limit" in error.message or "nested too deeply" in error.message


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": list(range(100_000))},
        {"input": list(range(100_000))},
        {"input": [{"role": "user", "content": "x"}] * (MAX_INPUTS + 1)},
        {"messages": [{"role": "user", "content": "x"}] * (MAX_PROMPTS + 1)},
        {"messages": [{"role": "user", "content": [{"type": "text"}] * 300}]},
        {"n": "8", "max_tokens": "100", "seed": -5, "temperature": "warm"},
        {"stop": None, "tools": None, "text": "plain"},
        {"messages": [[MESSAGE], None, 5, "x"], "input": [MESSAGE, [MESSAGE, [1]]]},
        {"n": "many"},
        {"logprobs": True},
        {"prompt": "a", "n": MAX_N},
        {"prompt": [], "input": []},
    ],
)
def test_one_long_part_is_not_many(body: dict[str, Any]) -> None:
    assert read(body) == body


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"structured_outputs": 441}, "structured_outputs"),
        ({"response_format": "json"}, "response_format"),
        ({"stream_options": True}, "stream_options"),
        ({"tools": {"a": 1}}, "tools"),
        ({"tools": [1]}, "tools"),
        ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]}, "allowed_token_ids"),
    ],
)
def test_what_vllms_own_readers_stumble_over_is_refused(body: dict[str, Any], param: str) -> None:
    assert refusal(body).param == param


@pytest.mark.parametrize("body", ["x", 5, [], [{}], True])
def test_a_body_is_an_object(body: Any) -> None:
    assert refusal(body).param == "openai_input"


def test_the_given_body_is_left_as_it_was() -> None:
    body = {"stream": "true", "extra_body": {"guided_json": SCHEMA}, "messages": [{"role": "user"}]}
    before = copy.deepcopy(body)
    read(body)["messages"][0]["role"] = "system"
    assert body == before


@pytest.mark.parametrize("place", ["chat_template_kwargs", "vllm_xargs", "sampling_params", "extra_args"])
@pytest.mark.parametrize("name", sorted(OPERATOR_FIELDS))
def test_fields_for_the_operator_may_hide_in_others(name: str, place: str) -> None:
    assert operator_fields({place: {name: "x"}}) == (f"{place}.{name}",)
    inner = {"sampling_params": {"extra_args": {name: None}}}
    assert operator_fields(inner) == (f"sampling_params.extra_args.{name}",)


@pytest.mark.parametrize("name", sorted(OPERATOR_FIELDS))
def test_fields_for_the_operator_are_pointed_out(name: str) -> None:
    assert operator_fields({name: {"a": 1}, "model": "m"}) == (name,)
    assert operator_fields({name: None}) == ()


def test_a_chat_template_may_hide_in_its_arguments() -> None:
    body = {"chat_template_kwargs": {"chat_template": "{{ x }}"}}
    assert operator_fields(body) == ("chat_template_kwargs.chat_template",)
    assert operator_fields({"chat_template_kwargs": {"enable_thinking": False}}) == ()
    assert operator_fields(None) == ()
