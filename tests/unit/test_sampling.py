from __future__ import annotations

import copy
from typing import Any

import pytest
from pydantic import ValidationError

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BEAM_WIDTH,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    OPERATOR_FIELDS,
    REJECTED_SAMPLING,
    SAMPLING_FIELDS,
    SAMPLING_RELICS,
)
from worker_vllm.sampling import KNOWN_SAMPLING, Sampling, merge_fields


def params(**fields: Any) -> dict[str, Any]:
    return Sampling.parse(fields, []).params


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        Sampling.parse(fields, [])
    return caught.value


def test_nothing_given_leaves_every_default_to_the_engine() -> None:
    assert Sampling.parse({}, []) == Sampling()


@pytest.mark.parametrize("name", sorted(KNOWN_SAMPLING))
def test_null_is_not_given(name: str) -> None:
    warnings: list[str] = []
    assert Sampling.parse({name: None}, warnings) == Sampling()
    assert warnings == []


@pytest.mark.parametrize(
    ("fields", "read"),
    [
        ({"temperature": "0.7"}, {"temperature": 0.7}),
        ({"temperature": 1}, {"temperature": 1.0}),
        ({"max_tokens": "12"}, {"max_tokens": 12}),
        ({"max_completion_tokens": 12}, {"max_tokens": 12}),
        ({"max_tokens": 12, "max_completion_tokens": 12}, {"max_tokens": 12}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": ["a", "b"]}, {"stop": ["a", "b"]}),
        ({"stop_token_ids": ["5", 6]}, {"stop_token_ids": [5, 6]}),
        ({"seed": -1}, {}),
        ({"seed": "7"}, {"seed": 7}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"top_k": 0}, {"top_k": 0}),
        ({"thinking_token_budget": -1}, {}),
        ({"ignore_eos": "True"}, {"ignore_eos": True}),
        ({"logit_bias": {"5": "2", "6": 500}}, {"logit_bias": {5: 2.0, 6: 100.0}}),
        ({"logprobs": True}, {"logprobs": 1}),
        ({"logprobs": False}, {}),
        ({"logprobs": "3"}, {"logprobs": 3}),
        ({"logprobs": -1}, {"logprobs": -1}),
        ({"logprobs": True, "top_logprobs": 5}, {"logprobs": 5}),
        ({"logprobs": True, "top_logprobs": 0}, {"logprobs": 0}),
        ({"logprobs": 5, "top_logprobs": 5}, {"logprobs": 5}),
        ({"prompt_logprobs": 2}, {"prompt_logprobs": 2}),
        ({"bad_words": "x"}, {"bad_words": ["x"]}),
        ({"extra_args": {"a": [1]}}, {"extra_args": {"a": [1]}}),
        (
            {"repetition_detection": {"max_pattern_size": "3", "min_count": 2, "min_pattern_size": None}},
            {"repetition_detection": {"max_pattern_size": 3, "min_count": 2}},
        ),
        ({"prompt_logprob_token_ids": [[1, -1], [2, 3]]}, {"prompt_logprob_token_ids": [[1, -1], [2, 3]]}),
        ({"detokenize": True}, {}),
        ({"use_beam_search": False, "length_penalty": 1}, {}),
    ],
)
def test_values_are_converted(fields: dict[str, Any], read: dict[str, Any]) -> None:
    assert params(**fields) == read


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"top_k": -2}, "top_k"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"n": 0}, "n"),
        ({"n": MAX_N + 1}, "n"),
        ({"seed": 2**64}, "seed"),
        ({"stop": [""]}, "stop"),
        ({"stop": {"a": 1}}, "stop"),
        ({"stop": ["a"] * (MAX_STOP_STRINGS + 1)}, "stop"),
        ({"stop_token_ids": list(range(MAX_STOP_TOKEN_IDS + 1))}, "stop_token_ids"),
        ({"stop_token_ids": [2**31]}, "stop_token_ids"),
        ({"allowed_token_ids": [0] * (MAX_ALLOWED_TOKEN_IDS + 1)}, "allowed_token_ids"),
        ({"bad_words": ["a"] * (MAX_BAD_WORDS + 1)}, "bad_words"),
        ({"logprobs": MAX_LOGPROBS + 1}, "logprobs"),
        ({"logprobs": -2}, "logprobs"),
        ({"prompt_logprobs": MAX_LOGPROBS + 1}, "prompt_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 3, "top_logprobs": 2}, "top_logprobs"),
        ({"logprob_token_ids": list(range(MAX_LOGPROB_TOKEN_IDS + 1))}, "logprob_token_ids"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"1": "x"}}, "logit_bias"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"logit_bias": {str(i): 1 for i in range(MAX_LOGIT_BIAS + 1)}}, "logit_bias"),
        ({"prompt_logprob_token_ids": [1]}, "prompt_logprob_token_ids"),
        ({"prompt_logprob_token_ids": [[0] * (MAX_ALLOWED_TOKEN_IDS + 1)]}, "prompt_logprob_token_ids"),
        ({"repetition_detection": {"size": 1}}, "size"),
        ({"repetition_detection": {"min_count": "x"}}, "repetition_detection.min_count"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
        ({"length_penalty": 1.2}, "length_penalty"),
        ({"use_beam_search": "perhaps"}, "use_beam_search"),
        ({"use_beam_search": True, "n": MAX_BEAM_WIDTH + 1}, "n"),
        ({"detokenize": False}, "detokenize"),
        ({"temprature": 1}, "temprature"),
        ({"ignore_eos": 1}, "ignore_eos"),
    ],
)
def test_a_bad_value_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


@pytest.mark.parametrize("name", sorted(REJECTED_SAMPLING))
def test_what_no_job_may_set_is_refused_with_the_reason(name: str) -> None:
    error = refusal(**{name: 1})
    assert error.param == name
    assert REJECTED_SAMPLING[name] in error.message


@pytest.mark.parametrize("name", sorted(SAMPLING_RELICS))
def test_what_lost_its_meaning_is_dropped_with_a_warning(name: str) -> None:
    warnings: list[str] = []
    assert Sampling.parse({name: "anything"}, warnings) == Sampling()
    assert len(warnings) == 1
    assert name in warnings[0]
    assert "anything" not in warnings[0]


@pytest.mark.parametrize("name", ["kv_transfer_params", "ec_transfer_params"])
def test_extra_args_cannot_carry_what_is_the_operators(name: str) -> None:
    error = refusal(extra_args={name: {"remote_host": "10.0.0.1"}})
    assert error.param == "extra_args"
    assert OPERATOR_FIELDS[name] in error.message


@pytest.mark.parametrize("temperature", [0, "0", 1e-9])
def test_several_greedy_answers_are_refused_with_a_sentence(temperature: Any) -> None:
    error = refusal(n=2, temperature=temperature)
    assert error.param == "n"
    assert "temperature" in error.message


def test_several_answers_need_no_temperature() -> None:
    assert params(n=2) == {"n": 2}


def test_beam_search_takes_n_as_its_width() -> None:
    sampling = Sampling.parse(
        {"use_beam_search": True, "n": 4, "length_penalty": "1.2", "temperature": 0}, []
    )
    assert sampling.beam == {"n": 4, "length_penalty": 1.2}
    assert sampling.params == {"temperature": 0.0}


def test_beam_search_has_defaults() -> None:
    assert Sampling.parse({"use_beam_search": "true"}, []).beam == {"n": 1, "length_penalty": 1.0}


def test_truncation_is_no_sampling_parameter() -> None:
    sampling = Sampling.parse({"truncate_prompt_tokens": "16"}, [])
    assert sampling.truncate_prompt_tokens == 16
    assert sampling.params == {}


def test_structured_outputs_are_normalised() -> None:
    sampling = Sampling.parse({"guided_choice": ["a"]}, [])
    assert sampling.structured_outputs == {"choice": ["a"]}
    assert sampling.params == {}


def test_the_input_is_left_as_it_was() -> None:
    fields = {"stop": ["a"], "logit_bias": {"1": 2}, "extra_args": {"a": [1]}, "guided_json": {"a": {"b": 1}}}
    before = copy.deepcopy(fields)
    sampling = Sampling.parse(fields, [])
    sampling.params["extra_args"]["a"].append(2)
    assert fields == before


def test_sampling_is_frozen() -> None:
    with pytest.raises(ValidationError):
        Sampling().beam = {}  # type: ignore[misc]


def test_two_places_must_agree() -> None:
    fields: dict[str, Any] = {"a": 1}
    merge_fields(fields, {"a": 1, "b": 2, "c": None})
    assert fields == {"a": 1, "b": 2}
    with pytest.raises(RequestError, match="twice") as caught:
        merge_fields(fields, {"b": 3})
    assert caught.value.param == "b"


@pytest.mark.parametrize("name", sorted(SAMPLING_FIELDS))
def test_every_parameter_has_a_reader(name: str) -> None:
    assert (refusal(**{name: [{}]}).param or "").startswith(name)
