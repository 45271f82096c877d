"""A job's sampling parameters against the installed vLLM's own class. No engine runs here."""

from __future__ import annotations

from inspect import signature
from typing import Any

import pytest

from worker_vllm.job_fields import SAMPLING_FIELDS
from worker_vllm.sampling import KNOWN_SAMPLING, Sampling
from worker_vllm.vllm_compat import load

# Parameters that the oldest supported vLLM (0.26) does not have yet.
SINCE_0_32 = {
    "watermarking",
    "stream_interval",
    "prompt_logprob_token_ids",
    "prompt_logprob_start",
    "trace_decode_token_ids",
}


def test_vllm_takes_every_parameter_that_a_job_may_give() -> None:
    assert set(SAMPLING_FIELDS) - set(signature(load("SamplingParams")).parameters) <= SINCE_0_32


def test_every_parameter_of_vllms_has_an_answer() -> None:
    """One that a new release adds must be read or refused on purpose, not called unknown."""
    public = {name for name in signature(load("SamplingParams")).parameters if not name.startswith("_")}
    assert public - KNOWN_SAMPLING == set()


@pytest.mark.parametrize(
    "fields",
    [
        {"n": "2", "temperature": "0.5", "top_p": 1, "top_k": -1, "min_p": 0, "seed": -1},
        {"stop": "a", "stop_token_ids": ["1"], "bad_words": ["x"], "max_tokens": 1, "min_tokens": 0},
        {"logprobs": True, "prompt_logprobs": 2, "logit_bias": {"1": "200"}, "allowed_token_ids": [1]},
        {"presence_penalty": -2, "frequency_penalty": 2, "repetition_penalty": 0.1, "ignore_eos": "true"},
        {"extra_args": {"a": [1]}, "thinking_token_budget": -1, "skip_reading_prefix_cache": False},
    ],
)
def test_what_is_read_makes_vllms_own_parameters(fields: dict[str, Any]) -> None:
    load("SamplingParams")(**Sampling.parse(fields, []).params)


@pytest.mark.parametrize(
    "fields",
    [
        {"guided_json": '{"type": "object"}'},
        {"guided_choice": ["a"], "guided_whitespace_pattern": " "},
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"regex": "a", "disable_any_whitespace": True}},
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
    ],
)
def test_what_is_read_makes_vllms_own_structured_outputs(fields: dict[str, Any]) -> None:
    outputs = Sampling.parse(fields, []).structured_outputs
    assert outputs is not None
    load("StructuredOutputsParams")(**outputs)


def test_what_is_read_makes_vllms_own_repetition_detection() -> None:
    read = Sampling.parse({"repetition_detection": {"max_pattern_size": 4, "min_count": "3"}}, [])
    load("RepetitionDetectionParams")(**read.params["repetition_detection"])
