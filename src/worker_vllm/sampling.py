"""A native job's sampling parameters: validated, converted, under vLLM's own names."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    MAX_ALLOWED_TOKEN_IDS,
    MAX_BAD_WORDS,
    MAX_BEAM_WIDTH,
    MAX_INTEGER,
    MAX_LOGIT_BIAS,
    MAX_LOGPROB_TOKEN_IDS,
    MAX_LOGPROBS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    MAX_TOKEN_COUNT,
    MAX_TOKEN_ID,
    OPERATOR_FIELDS,
    REJECTED_SAMPLING,
    SAMPLING_ALIASES,
    SAMPLING_EXTRAS,
    SAMPLING_FIELDS,
    SAMPLING_RELICS,
    STRUCTURED_FIELDS,
    Rule,
)
from worker_vllm.job_values import (
    describe,
    read_bool,
    read_float,
    read_int,
    read_object,
    read_texts,
    read_token_ids,
    too_many,
    unknown_field,
)
from worker_vllm.structured import read_structured_outputs

KNOWN_SAMPLING = frozenset(
    (
        *SAMPLING_FIELDS,
        *SAMPLING_ALIASES,
        *SAMPLING_EXTRAS,
        *STRUCTURED_FIELDS,
        *SAMPLING_RELICS,
        *REJECTED_SAMPLING,
    )
)
"""Every name that `Sampling.parse` has an answer for, be it a refusal."""

# Below this vLLM samples greedily, whatever else is set.
_GREEDY_TEMPERATURE = 1e-5


class Sampling(BaseModel):
    """How the answer to a native job is chosen.

    Attributes:
        params: keyword arguments for vllm.SamplingParams, without nulls. `max_tokens` is absent where the job
            names
            none: the worker's default applies then. `repetition_detection` is a plain object here.
        structured_outputs: the constraint on the output, one of CONSTRAINTS and its refinements, or None.
        truncate_prompt_tokens: keep only so many tokens of the prompt; -1 is the model's maximum.
        beam: `n` (the width) and `length_penalty` where beam search is asked for; `params` has no `n` then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    params: dict[str, Any] = {}
    structured_outputs: dict[str, Any] | None = None
    truncate_prompt_tokens: int | None = None
    beam: dict[str, Any] | None = None

    @classmethod
    def parse(cls, fields: Mapping[str, Any], warnings: list[str]) -> Sampling:
        """Read sampling parameters by their names; null counts as not given.

        Args:
            fields: as the job holds them, never mutated.
            warnings: dropped relics are added here.

        Raises RequestError naming the field: unknown, refused, of a wrong type, out of bounds, or
        contradictory.
        """
        given = {name: value for name, value in _renamed(fields).items() if value is not None}
        for name in given:
            if name in REJECTED_SAMPLING:
                raise RequestError(f"{name} cannot be set by a job: {REJECTED_SAMPLING[name]}", param=name)
            if name in SAMPLING_RELICS:
                warnings.append(f"{name} was dropped: {SAMPLING_RELICS[name]}")
            elif name not in KNOWN_SAMPLING:
                raise unknown_field(name, KNOWN_SAMPLING, "sampling_params")
        params = {
            name: _READERS[rule.kind](given[name], name, rule)
            for name, rule in SAMPLING_FIELDS.items()
            if name in given
        }
        _apply_meanings(params, given)
        beam = _beam(params, given)
        if beam is None:
            _check_greedy(params)
        structured_outputs = read_structured_outputs(given, warnings)
        if structured_outputs and params.get("allowed_token_ids"):
            raise RequestError(
                "structured outputs and allowed_token_ids contradict each other", param="allowed_token_ids"
            )
        truncate = given.get("truncate_prompt_tokens")
        return cls(
            params={name: value for name, value in params.items() if value is not None},
            structured_outputs=structured_outputs,
            truncate_prompt_tokens=None if truncate is None else _truncation(truncate),
            beam=beam,
        )


def merge_fields(into: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Add fields from another place of the same job; null gives nothing.

    Raises RequestError for a field that both places give with different values.
    """
    for name, value in more.items():
        if value is None:
            continue
        if into.get(name) is not None and into[name] != value:
            raise RequestError(f"{name} is given twice with different values", param=name)
        into[name] = value


def _renamed(fields: Mapping[str, Any]) -> dict[str, Any]:
    renamed: dict[str, Any] = {}
    for name, value in fields.items():
        merge_fields(renamed, {SAMPLING_ALIASES.get(name, name): value})
    return renamed


def _apply_meanings(params: dict[str, Any], given: Mapping[str, Any]) -> None:
    """Values that mean "the default" in one spelling or another, and parameters that act through others."""
    if params.get("seed") == -1:
        params["seed"] = None
    if params.get("top_k") == -1:
        params["top_k"] = 0
    if params.get("thinking_token_budget") == -1:
        params["thinking_token_budget"] = None
    if "top_logprobs" in given:
        count = read_int(given["top_logprobs"], "top_logprobs", 0, MAX_LOGPROBS)
        if params.get("logprobs") is None:
            raise RequestError("top_logprobs needs logprobs", param="top_logprobs")
        if given["logprobs"] is not True and params["logprobs"] != count:
            raise RequestError("top_logprobs contradicts logprobs", param="top_logprobs")
        params["logprobs"] = count
    if "detokenize" in given and not read_bool(given["detokenize"], "detokenize"):
        raise RequestError("detokenize cannot be off: the output is text", param="detokenize")


def _beam(params: dict[str, Any], given: Mapping[str, Any]) -> dict[str, Any] | None:
    wanted = "use_beam_search" in given and read_bool(given["use_beam_search"], "use_beam_search")
    length_penalty = 1.0
    if "length_penalty" in given:
        length_penalty = read_float(given["length_penalty"], "length_penalty")
        if not wanted and length_penalty != 1.0:
            raise RequestError("length_penalty needs use_beam_search", param="length_penalty")
    if not wanted:
        return None
    width = params.pop("n", 1)
    if width > MAX_BEAM_WIDTH:
        raise RequestError(f"n is {width}; the limit with use_beam_search is {MAX_BEAM_WIDTH}", param="n")
    return {"n": width, "length_penalty": length_penalty}


def _check_greedy(params: Mapping[str, Any]) -> None:
    if params.get("n", 1) > 1 and params.get("temperature", 1.0) < _GREEDY_TEMPERATURE:
        raise RequestError(
            "n above 1 with temperature 0 would give one answer n times: raise temperature or leave n at 1",
            param="n",
        )


def _truncation(value: Any) -> int:
    tokens = read_int(value, "truncate_prompt_tokens", -1, MAX_TOKEN_COUNT)
    if tokens == 0:
        raise RequestError("truncate_prompt_tokens must be at least 1, or -1", param="truncate_prompt_tokens")
    return tokens


def _read_int(value: Any, name: str, rule: Rule) -> int:
    minimum = -MAX_INTEGER - 1 if rule.minimum is None else int(rule.minimum)
    return read_int(value, name, minimum, MAX_INTEGER if rule.maximum is None else int(rule.maximum))


def _read_float(value: Any, name: str, rule: Rule) -> float:
    minimum = -math.inf if rule.minimum is None else rule.minimum
    maximum = math.inf if rule.maximum is None else rule.maximum
    return read_float(value, name, minimum, maximum, above=rule.above)


def _read_logprobs(value: Any, name: str, rule: Rule) -> int | None:
    """A count; true and false as on OpenAI's chat route."""
    if isinstance(value, bool):
        return 1 if value else None
    return _read_int(value, name, rule)


def _read_logit_bias(value: Any, name: str, rule: Rule) -> dict[int, float]:
    """By token id; the values are bounded to ±100, as vLLM's own routes do."""
    biases = read_object(value, name)
    if len(biases) > MAX_LOGIT_BIAS:
        raise too_many(name, "items", len(biases), MAX_LOGIT_BIAS)
    return {
        read_int(token, name, 0, MAX_TOKEN_ID): min(100.0, max(-100.0, read_float(bias, name)))
        for token, bias in biases.items()
    }


def _read_rows(value: Any, name: str, rule: Rule) -> list[list[int]]:
    """Rows of token ids; -1 is padding."""
    if not isinstance(value, list | tuple) or not all(isinstance(row, list | tuple) for row in value):
        raise RequestError(f"{name} must be a list of lists of token ids, not {describe(value)}", param=name)
    count = sum(len(row) for row in value)
    if count > MAX_ALLOWED_TOKEN_IDS:
        raise too_many(name, "items", count, MAX_ALLOWED_TOKEN_IDS)
    return [[read_int(token, name, -1, MAX_TOKEN_ID) for token in row] for row in value]


def _read_extra_args(value: Any, name: str, rule: Rule) -> dict[str, Any]:
    extra = read_object(value, name)
    for key in extra:
        if key in OPERATOR_FIELDS:
            raise RequestError(
                f"{name}.{key} is for the operator to set ({OPERATOR_FIELDS[key]})", param=name
            )
    return extra


def _read_repetition_detection(value: Any, name: str, rule: Rule) -> dict[str, int]:
    keys = ("max_pattern_size", "min_pattern_size", "min_count")
    given = read_object(value, name)
    for key in given:
        if key not in keys:
            raise unknown_field(key, keys, name)
    return {
        key: read_int(item, f"{name}.{key}", 0, MAX_TOKEN_COUNT)
        for key, item in given.items()
        if item is not None
    }


def _token_ids(limit: int) -> Callable[[Any, str, Rule], list[int]]:
    return lambda value, name, rule: read_token_ids(value, name, limit, MAX_TOKEN_ID)


_READERS: dict[str, Callable[[Any, str, Rule], Any]] = {
    "int": _read_int,
    "float": _read_float,
    "bool": lambda value, name, rule: read_bool(value, name),
    "stop": lambda value, name, rule: read_texts(value, name, MAX_STOP_STRINGS, MAX_STOP_CHARACTERS),
    "bad_words": lambda value, name, rule: read_texts(value, name, MAX_BAD_WORDS, MAX_STOP_CHARACTERS),
    "stop_token_ids": _token_ids(MAX_STOP_TOKEN_IDS),
    "logprob_token_ids": _token_ids(MAX_LOGPROB_TOKEN_IDS),
    "allowed_token_ids": _token_ids(MAX_ALLOWED_TOKEN_IDS),
    "token_id_rows": _read_rows,
    "logprobs": _read_logprobs,
    "logit_bias": _read_logit_bias,
    "extra_args": _read_extra_args,
    "repetition_detection": _read_repetition_detection,
}
