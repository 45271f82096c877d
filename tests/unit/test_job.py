from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from worker_vllm.errors import RequestError
from worker_vllm.job import BatchOptions, JobInput
from worker_vllm.job_fields import (
    BATCH_FIELDS,
    CHAT_FIELDS,
    ENVELOPE_FIELDS,
    IGNORED_FIELDS,
    MAX_SEQUENCES,
    OPERATOR_FIELDS,
    PROMPT_FIELDS,
)
from worker_vllm.sampling import KNOWN_SAMPLING

USER = {"role": "user", "content": "hi"}
CHAT = "/v1/chat/completions"
BODY = {"messages": [USER]}


def parse(**fields: Any) -> JobInput:
    return JobInput.parse(fields)


def refusal(job_input: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        JobInput.parse(job_input)
    assert caught.value.code == 400
    assert "\n" not in caught.value.message
    return caught.value


# --- native: prompt and messages ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "hi"}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"prompt": ["a", "b"]}, {"kind": "prompt", "prompts": ("a", "b"), "many": True}),
        ({"prompt": [1, 2]}, {"kind": "prompt", "prompts": ((1, 2),)}),
        ({"prompt": [[1], [2]]}, {"kind": "prompt", "prompts": ((1,), (2,)), "many": True}),
        ({"prompt": [USER]}, {"kind": "messages", "messages": (USER,)}),
        ({"messages": [USER]}, {"kind": "messages", "messages": (USER,)}),
        ({"messages": "hi"}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"messages": None, "prompt": "hi"}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"messages": [], "prompt": "hi"}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"messages": [USER], "prompt": None}, {"kind": "messages", "messages": (USER,)}),
        (
            {"prompt": "hi", "apply_chat_template": "true"},
            {"kind": "prompt", "prompts": ("hi",), "apply_chat_template": True},
        ),
        (
            {"messages": "hi", "apply_chat_template": True},
            {"kind": "prompt", "prompts": ("hi",), "apply_chat_template": True},
        ),
        ({"prompt": "hi", "sampling_params": None}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"prompt": "hi", "stream": "True"}, {"kind": "prompt", "prompts": ("hi",), "stream": True}),
        ({"prompt": "hi", "stream": "false"}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"prompt": "hi", "model": "adapter"}, {"kind": "prompt", "prompts": ("hi",), "model": "adapter"}),
        ({"prompt": "hi", "model": ""}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"prompt": "hi", "openai_route": "", "openai_input": {}}, {"kind": "prompt", "prompts": ("hi",)}),
        ({"prompt": "hi", "route": None, "body": {}}, {"kind": "prompt", "prompts": ("hi",)}),
    ],
)
def test_every_native_shape_is_read(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert JobInput.parse(fields) == JobInput(**expected)


def test_messages_win_over_a_prompt_and_the_log_says_so() -> None:
    job = parse(prompt="a", messages=[USER])
    assert job.messages == (USER,)
    assert job.prompts == ()
    assert job.warnings == ("prompt was dropped: messages win over it",)


def test_messages_are_always_templated_and_the_log_says_so() -> None:
    assert "template" in parse(messages=[USER], apply_chat_template=False).warnings[0]
    assert parse(messages=[USER], apply_chat_template=True).warnings == ()


def test_both_inputs_of_the_hubs_tests_are_read() -> None:
    """worker-contract section F: neither names a model, the first gives no sampling_params."""
    assert parse(prompt="Hello World").kind == "prompt"
    assert parse(openai_route=CHAT, openai_input=BODY).kind == "route"


def test_chat_fields_go_with_messages() -> None:
    assert parse(messages=[USER], add_generation_prompt="false").chat == {"add_generation_prompt": False}
    assert parse(prompt="a", apply_chat_template=True, tools=[]).chat == {"tools": []}


def test_chat_fields_without_a_template_are_refused() -> None:
    assert refusal({"prompt": "a", "tools": []}).param == "tools"


def test_token_ids_cannot_be_templated() -> None:
    assert refusal({"prompt": [1, 2], "apply_chat_template": True}).param == "apply_chat_template"


@pytest.mark.parametrize("job_input", [None, 5, "hi", [], [USER], True, 1.5])
def test_an_input_that_is_no_object_is_refused(job_input: Any) -> None:
    """user-problems 23."""
    assert refusal(job_input).param == "input"


@pytest.mark.parametrize("job_input", [{}, {"prompt": None}, {"stream": True}, {"sampling_params": {"n": 1}}])
def test_an_input_without_anything_to_do_names_the_accepted_shapes(job_input: Any) -> None:
    message = refusal(job_input).message
    for word in ("prompt", "messages", "openai_route", "route"):
        assert word in message


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": 5}, "prompt"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [], "prompt": ""}, None),
        ({"prompt": "a", "stream": "yes"}, "stream"),
        ({"prompt": "a", "stream": 1}, "stream"),
        ({"prompt": "a", "apply_chat_template": "yes"}, "apply_chat_template"),
        ({"prompt": "a", "sampling_params": "x"}, "sampling_params"),
        ({"prompt": "a", "sampling_params": [1]}, "sampling_params"),
        ({"prompt": "a", "model": 5}, "model"),
        ({"prompt": "a", "extra_body": 5}, "extra_body"),
        ({"prompt": "a", "extra_body": {"sampling_params": {"n": 2}}}, "sampling_params"),
        ({"prompt": "a", "extra_body": {"max_batch_size": 2}}, "max_batch_size"),
        ({"prompt": "a", "extra_body": {"extra_body": {}}}, "extra_body"),
        ({"prompt": "a", "body": {"a": 1}}, "body"),
        ({"prompt": "a", "method": "POST"}, "method"),
        ({"promt": "a"}, "promt"),
        ({"prompt": "a", "user_id": 5}, "user_id"),
        ({"prompt": "a", "sampling_params": {"prompt": "b"}}, "prompt"),
        ({"prompt": "a", "tool_choice": "required", "apply_chat_template": True}, "tool_choice"),
    ],
)
def test_a_bad_field_is_refused_by_name(fields: dict[str, Any], param: str | None) -> None:
    if param is None:
        assert JobInput.parse(fields).prompts == ("",)
        return
    assert refusal(fields).param == param


def test_an_unknown_field_is_named_with_the_nearest_known_one() -> None:
    message = refusal({"prompt": "a", "temprature": 1}).message
    assert "temprature" in message
    assert "temperature" in message


@pytest.mark.parametrize("name", sorted(OPERATOR_FIELDS))
def test_what_only_the_operator_may_set_is_refused(name: str) -> None:
    for fields in ({name: {}}, {"extra_body": {name: {}}}, {"sampling_params": {name: {}}}):
        error = refusal({"messages": [USER], **fields})
        assert error.param == name
        assert OPERATOR_FIELDS[name] in error.message


def test_what_has_no_meaning_is_dropped_with_a_warning() -> None:
    job = parse(
        prompt="a", use_openai_format=True, user="u", best_of=2, sampling_params={"early_stopping": True}
    )
    assert {warning.split()[0] for warning in job.warnings} == {
        "use_openai_format",
        "user",
        "best_of",
        "early_stopping",
    }
    assert job == JobInput(kind="prompt", prompts=("a",), warnings=job.warnings)


# --- sampling parameters: in their place, beside it, and in extra_body ---


@pytest.mark.parametrize(
    "fields",
    [
        {"sampling_params": {"temperature": 0.5, "max_tokens": 7}},
        {"temperature": 0.5, "max_tokens": 7},
        {"temperature": 0.5, "sampling_params": {"max_completion_tokens": "7"}},
        {"extra_body": {"temperature": 0.5}, "sampling_params": {"max_tokens": 7}},
        {"temperature": 0.5, "max_tokens": 7, "sampling_params": {"temperature": 0.5}},
    ],
)
def test_sampling_parameters_may_stand_beside_the_prompt(fields: dict[str, Any]) -> None:
    """user-problems 19."""
    assert parse(prompt="a", **fields).sampling.params == {"temperature": 0.5, "max_tokens": 7}


def test_two_different_values_for_one_parameter_are_refused() -> None:
    assert refusal({"prompt": "a", "n": 2, "sampling_params": {"n": 3}}).param == "n"
    assert refusal({"prompt": "a", "max_tokens": 2, "max_completion_tokens": 3}).param == "max_tokens"


def test_guided_fields_beside_messages_are_honoured() -> None:
    job = parse(messages=[USER], guided_json=json.dumps({"type": "object"}))
    assert job.sampling.structured_outputs == {"json": {"type": "object"}}


def test_chat_fields_inside_sampling_params_are_hoisted() -> None:
    job = parse(
        messages=[USER], sampling_params={"chat_template_kwargs": {"a": 1}, "stream": True, "model": "m"}
    )
    assert (job.chat, job.stream, job.model) == ({"chat_template_kwargs": {"a": 1}}, True, "m")


@pytest.mark.parametrize("sampling", [{"n": 100}, {"use_beam_search": True, "n": 32}])
def test_all_answers_of_a_job_together_are_limited(sampling: dict[str, Any]) -> None:
    prompts = ["a"] * (MAX_SEQUENCES // sampling["n"] + 1)
    assert "limit" in refusal({"prompt": prompts, **sampling}).message
    assert len(parse(prompt=prompts[1:], **sampling).prompts) == len(prompts) - 1


# --- batch sizes ---


@pytest.mark.parametrize(
    ("fields", "options"),
    [
        ({}, BatchOptions()),
        ({"max_batch_size": 8}, BatchOptions(max_batch_size=8)),
        ({"max_batch_size": "8", "min_batch_size": 2.0}, BatchOptions(max_batch_size=8, min_batch_size=2)),
        ({"batch_size_growth_factor": "1.5"}, BatchOptions(growth=1.5)),
        ({"batch_size": 8, "growth_factor": 2}, BatchOptions(max_batch_size=8, growth=2)),
        ({"batch_size": 8, "max_batch_size": 8}, BatchOptions(max_batch_size=8)),
        ({"min_batch_size": 0, "max_batch_size": "", "growth_factor": None}, BatchOptions()),
        ({"min_batch_size": "0", "batch_size_growth_factor": 0}, BatchOptions()),
    ],
)
@pytest.mark.parametrize("shape", [{"prompt": "a"}, {"openai_route": CHAT, "openai_input": BODY}])
def test_batch_sizes_are_read_by_both_names(
    shape: dict[str, Any], fields: dict[str, Any], options: BatchOptions
) -> None:
    assert parse(**shape, **fields).batch == options


@pytest.mark.parametrize("name", sorted(BATCH_FIELDS))
@pytest.mark.parametrize("value", [-1, "x", True, [], float("nan")])
def test_a_bad_batch_size_is_refused_by_name(name: str, value: Any) -> None:
    assert refusal({"prompt": "a", name: value}).param == name


def test_batch_sizes_by_both_names_must_agree() -> None:
    refusal({"prompt": "a", "batch_size": 8, "max_batch_size": 9})


# --- routes ---


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"openai_route": CHAT, "openai_input": BODY}, {"route": CHAT, "method": "POST", "body": BODY}),
        ({"openai_input": BODY}, {"route": CHAT, "method": "POST", "body": BODY}),
        ({"openai_route": "/v1/models"}, {"route": "/v1/models", "method": "GET"}),
        ({"openai_route": "/v1/models", "openai_input": None}, {"route": "/v1/models", "method": "GET"}),
        ({"openai_route": "/v1/models", "openai_input": {}}, {"route": "/v1/models", "method": "GET"}),
        ({"openai_route": "v1/models?a=b"}, {"route": "/v1/models", "query": "a=b", "method": "GET"}),
        ({"route": "/v1/models"}, {"route": "/v1/models", "method": "GET"}),
        (
            {"route": "/tokenize", "body": {"prompt": "a"}},
            {"route": "/tokenize", "method": "POST", "body": {"prompt": "a"}},
        ),
        ({"route": "/sleep", "method": "post"}, {"route": "/sleep", "method": "POST", "body": {}}),
        ({"route": "/v1/x", "method": "delete"}, {"route": "/v1/x", "method": "DELETE"}),
        ({"route": "/v1/models", "body": {}, "method": "GET"}, {"route": "/v1/models", "method": "GET"}),
        (
            {"openai_route": CHAT, "openai_input": {**BODY, "stream": "true"}},
            {"route": CHAT, "method": "POST", "body": {**BODY, "stream": True}, "stream": True},
        ),
        (
            {"route": CHAT, "body": BODY, "stream": True},
            {"route": CHAT, "method": "POST", "body": {**BODY, "stream": True}, "stream": True},
        ),
        ({"route": CHAT, "body": BODY, "stream": False}, {"route": CHAT, "method": "POST", "body": BODY}),
        (
            {
                "openai_route": CHAT,
                "openai_input": BODY,
                "prompt": "",
                "sampling_params": {},
                "apply_chat_template": False,
            },
            {"route": CHAT, "method": "POST", "body": BODY},
        ),
    ],
)
def test_every_route_shape_is_read(fields: dict[str, Any], expected: dict[str, Any]) -> None:
    assert JobInput.parse(fields) == JobInput(kind="route", **expected)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"openai_route": 5}, "openai_route"),
        ({"openai_route": "http://host/v1"}, "openai_route"),
        ({"route": "/v1/../metrics"}, "route"),
        ({"openai_route": CHAT, "openai_input": "text"}, "openai_input"),
        ({"openai_route": CHAT, "openai_input": [USER]}, "openai_input"),
        ({"openai_input": 5}, "openai_input"),
        ({"route": CHAT, "body": "text"}, "body"),
        ({"route": CHAT, "method": "TRACE"}, "method"),
        ({"route": CHAT, "method": 5}, "method"),
        ({"route": CHAT, "method": "GET", "body": BODY}, "body"),
        ({"openai_route": CHAT, "route": CHAT}, "route"),
        ({"openai_route": CHAT, "body": BODY}, "body"),
        ({"openai_route": CHAT, "openai_input": BODY, "prompt": "a"}, "prompt"),
        ({"openai_route": CHAT, "openai_input": BODY, "temperature": 1}, "temperature"),
        ({"openai_route": CHAT, "openai_inptu": BODY}, "openai_inptu"),
        ({"openai_route": CHAT, "openai_input": {**BODY, "stream": "yes"}}, "stream"),
        ({"openai_route": CHAT, "openai_input": {**BODY, "stream": False}, "stream": True}, "stream"),
        ({"openai_route": CHAT, "openai_input": {**BODY, "stream": True}, "stream": False}, "stream"),
        ({"route": CHAT, "body": BODY, "stream": "yes"}, "stream"),
        ({"body": BODY}, "body"),
    ],
)
def test_a_bad_route_job_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(fields).param == param


def test_streaming_a_request_without_a_body_is_dropped_with_a_warning() -> None:
    job = parse(route="/v1/models", stream=True)
    assert not job.stream
    assert "stream" in job.warnings[0]


def test_the_relic_is_dropped_on_routes_too() -> None:
    assert "use_openai_format" in parse(openai_route="/v1/models", use_openai_format=True).warnings[0]


def test_operator_fields_of_a_body_are_pointed_out() -> None:
    job = parse(openai_route=CHAT, openai_input={**BODY, "chat_template": "{{ x }}"})
    assert job.operator_fields == ("chat_template",)
    assert parse(prompt="a").operator_fields == ()


# --- one value, frozen, sharing nothing ---


@pytest.mark.parametrize(
    "job_input",
    [
        {
            "messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
            "tools": [{"a": {"b": 1}}],
        },
        {"prompt": [[1, 2]], "sampling_params": {"stop": ["a"], "extra_args": {"a": [1]}}, "n": 2},
        {
            "openai_route": CHAT,
            "openai_input": {"stream": "true", "extra_body": {"a": [1]}, **BODY},
            "stream": True,
        },
        {"prompt": "a\ud83d", "guided_json": {"type": "object", "required": ["a"]}},
    ],
)
def test_the_input_is_left_as_it_was(job_input: dict[str, Any]) -> None:
    before = copy.deepcopy(job_input)
    _spoil(JobInput.parse(job_input).model_dump())
    job = JobInput.parse(job_input)
    for part in (job.messages, job.chat, job.sampling.params, job.sampling.structured_outputs, job.body):
        _spoil(part)
    assert job_input == before


def _spoil(value: Any) -> None:
    """Empty everything that can be emptied."""
    if isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            _spoil(item)
    if isinstance(value, dict | list):
        value.clear()


def test_a_job_input_is_frozen() -> None:
    with pytest.raises(ValidationError):
        parse(prompt="a").stream = True  # type: ignore[misc]


def test_lone_surrogates_become_replacement_characters() -> None:
    """A JavaScript client cuts an emoji in half when it cuts a string."""
    job = parse(messages=[{"role": "user", "content": "a\ud83d"}])
    assert job.messages[0]["content"] == "a\ufffd"


def test_deep_input_is_refused_without_recursing_to_death() -> None:
    deep: Any = {}
    for _ in range(10_000):
        deep = {"a": deep}
    for fields in ({"openai_input": deep}, {"messages": [USER], "tools": [deep]}, {"prompt": "a", "x": deep}):
        assert "deeply" in refusal(fields).message


@pytest.mark.parametrize(
    "fields",
    [
        {"openai_input": {"x": [{"a": 1}] * 30_000}},
        {"openai_input": {"x": [1.5] * 60_000}},
        {"prompt": "a", "extra_args": {str(number): 1 for number in range(60_000)}},
        {"prompt": ["a"] * 60_000},
    ],
)
def test_an_input_of_very_many_values_is_refused(fields: dict[str, Any]) -> None:
    assert "limit of 50000" in refusal(fields).message


def test_a_long_token_prompt_is_read_in_no_time() -> None:
    ids = list(range(100_000))
    assert parse(prompt=ids).prompts == (tuple(ids),)


# --- properties ---

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["true", "12", "0.5", "\ud800", "POST", CHAT, "user"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    sorted(
        {*KNOWN_SAMPLING, *BATCH_FIELDS, *CHAT_FIELDS, *PROMPT_FIELDS, *ENVELOPE_FIELDS, *IGNORED_FIELDS}
        | {*OPERATOR_FIELDS, "stream", "extra_body", "role", "content", "type", "json", "unknown"}
    )
)
OBJECTS = st.dictionaries(NAMES, JSON, max_size=5)
LIKELY = st.fixed_dictionaries(
    {},
    optional={
        "prompt": st.text(max_size=5) | JSON,
        "messages": st.lists(OBJECTS | st.just(USER), max_size=2) | JSON,
        "openai_route": st.sampled_from([CHAT, "/v1/models", "x\n"]) | JSON,
        "openai_input": OBJECTS | JSON,
        "route": st.just("/tokenize") | JSON,
        "body": OBJECTS | JSON,
        "sampling_params": OBJECTS | JSON,
        "extra_body": OBJECTS | JSON,
        "stream": JSON,
        "response_format": OBJECTS | JSON,
        "structured_outputs": OBJECTS | JSON,
        "logit_bias": st.dictionaries(st.sampled_from(["1", "x"]), JSON, max_size=2),
    },
)
FUZZ = settings(deadline=None, database=None, max_examples=100)


@FUZZ
@given(JSON | OBJECTS | LIKELY | st.tuples(LIKELY, OBJECTS).map(lambda pair: {**pair[1], **pair[0]}))
def test_any_json_is_read_or_refused_with_a_400(job_input: Any) -> None:
    before = repr(job_input)
    try:
        job = JobInput.parse(job_input)
    except RequestError as error:
        assert error.code == 400
        json.dumps(error.to_error(), ensure_ascii=False, allow_nan=False).encode()
        assert "\n" not in error.message
    else:
        json.dumps(job.model_dump(), ensure_ascii=False, allow_nan=False).encode()
    assert repr(job_input) == before


@FUZZ
@given(LIKELY)
def test_what_is_read_says_the_same_when_it_is_read_again(job_input: Any) -> None:
    try:
        job = JobInput.parse(job_input)
    except RequestError:
        return
    if job.kind != "route":
        return
    again = JobInput.parse({"route": job.route, "body": job.body, "method": job.method})
    assert (again.body, again.stream, again.method) == (job.body, job.stream, job.method)
