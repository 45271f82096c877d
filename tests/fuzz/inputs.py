"""Job inputs as mistakes or malice make them. `FUZZ_CASES` says how many; the default is short."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from worker_vllm import job_fields
from worker_vllm.engine.routes import INFERENCE_ROUTES, OPERATOR_ROUTES

CASES = int(os.environ.get("FUZZ_CASES", "300"))
"""All cases of a run, over its properties."""


def fuzz(share: float) -> settings:
    """Settings for a property that takes this share of the cases."""
    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    return settings(
        max_examples=max(20, int(CASES * share)), deadline=None, database=None, suppress_health_check=checks
    )


TEXT = st.text(alphabet=st.characters(exclude_categories=()), max_size=12)
WORDS = st.sampled_from(
    [
        "",
        "a",
        "hello there",
        "true",
        "false",
        "12",
        "-1",
        "0.5",
        "1e999",
        "nan",
        "\x00",
        "\ud800",
        "😀",
        "\u2028",
        "../../etc/passwd",
        "{{ 7*7 }}",
        "<|im_end|>",
        "a\nb\r\nX-Injected: 1",
        "file:///etc/passwd",
        "http://169.254.169.254/",
        "data:,x",
        "user",
        "system",
        "tool",
        "auto",
        "required",
        "text",
        "json_schema",
        "json_object",
        "(a+)+$",
        "[",
        "(?=x)",
        'root ::= "a"',
        "root ::=",
    ]
)
NUMBERS = st.sampled_from(
    [
        0,
        1,
        -1,
        2,
        7,
        128,
        129,
        2**31 - 1,
        2**31,
        2**63 - 1,
        2**63,
        -(2**63) - 1,
        2**70,
        10**400,
        0.0,
        -0.0,
        0.5,
        1.0,
        1e-9,
        1e308,
        float("nan"),
        float("inf"),
        float("-inf"),
    ]
)
SCALARS = st.none() | st.booleans() | NUMBERS | st.integers(-5, 600) | WORDS | TEXT
JSON: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS | TEXT, inner, max_size=4),
    max_leaves=10,
)

PART = st.fixed_dictionaries(
    {
        "type": st.sampled_from(["text", "image_url", "input_audio", "video_url", "file", "tool_result", "x"])
        | JSON
    },
    optional={
        "text": SCALARS,
        "image_url": st.fixed_dictionaries({"url": SCALARS}) | JSON,
        "input_audio": JSON,
        "video_url": JSON,
        "content": JSON,
    },
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "system", "assistant", "tool", "developer"]) | JSON},
    optional={
        "content": SCALARS | st.lists(PART | JSON, max_size=3),
        "name": JSON,
        "tool_calls": JSON,
        "tool_call_id": JSON,
        "reasoning": JSON,
    },
)
MESSAGES = st.lists(MESSAGE, max_size=4) | st.lists(MESSAGE | JSON, max_size=3) | JSON
PROMPT = SCALARS | st.lists(st.integers(-2, 60_000), max_size=8) | st.lists(WORDS, max_size=4) | JSON
SCHEMA = (
    st.sampled_from(
        [
            {},
            {"type": "object"},
            {"type": "string", "pattern": "["},
            {"$ref": "#/nowhere"},
            {"type": "nonsense"},
            {"enum": []},
            {"type": "array", "minItems": 5, "maxItems": 1},
            {"anyOf": []},
            {"type": ["string", "null"]},
        ]
    )
    | JSON
)
CONSTRAINT = st.dictionaries(
    st.sampled_from([*job_fields.CONSTRAINTS, *job_fields.CONSTRAINT_FLAGS, "whitespace_pattern", "backend"]),
    SCHEMA | SCALARS | st.lists(WORDS, max_size=3),
    max_size=2,
)
TOOL = st.fixed_dictionaries(
    {"type": st.just("function") | JSON},
    optional={"function": st.fixed_dictionaries({"name": SCALARS}, optional={"parameters": SCHEMA}) | JSON},
)
SHAPED: dict[str, st.SearchStrategy[Any]] = {
    "prompt": PROMPT,
    "messages": MESSAGES,
    "input": PROMPT | MESSAGES,
    "tools": st.lists(TOOL, max_size=2) | JSON,
    "structured_outputs": CONSTRAINT | JSON,
    "guided_decoding": CONSTRAINT | JSON,
    "guided_json": SCHEMA,
    "response_format": st.fixed_dictionaries({"type": WORDS}, optional={"json_schema": SCHEMA}) | JSON,
    "logit_bias": st.dictionaries(st.integers(-2, 60_000).map(str) | WORDS, SCALARS, max_size=3) | JSON,
    "max_tokens": st.integers(-1, 4) | SCALARS,
    "n": st.integers(-1, 3) | SCALARS,
    "stop": st.lists(WORDS, max_size=3) | SCALARS,
    "stop_token_ids": st.lists(NUMBERS, max_size=3) | JSON,
    "allowed_token_ids": st.lists(NUMBERS | st.integers(0, 60_000), max_size=3) | JSON,
}
VALID: dict[str, st.SearchStrategy[Any]] = {
    "temperature": st.sampled_from([0, 0.0, 0.7, 1, 2.0, "0.5"]),
    "top_p": st.sampled_from([0.1, 0.9, 1]),
    "top_k": st.sampled_from([-1, 0, 1, 50, 49_152, 10**6]),
    "min_p": st.sampled_from([0, 0.1, 1.0]),
    "presence_penalty": st.sampled_from([-2, 0, 2]),
    "frequency_penalty": st.sampled_from([-2, 0, 2]),
    "repetition_penalty": st.sampled_from([0.1, 1.0, 2.0]),
    "seed": st.sampled_from([0, 1, -1, 2**63 - 1]),
    "stop": st.lists(st.sampled_from(["a", "\n", "😀", " "]), max_size=3),
    "stop_token_ids": st.lists(st.integers(0, 60_000), max_size=3),
    "logprobs": st.sampled_from([0, 1, 5, 20, 21, True, False]),
    "top_logprobs": st.sampled_from([0, 1, 5, 20]),
    "prompt_logprobs": st.sampled_from([0, 1, 20, -1]),
    "logprob_token_ids": st.lists(st.integers(0, 60_000), max_size=3),
    "logit_bias": st.dictionaries(st.integers(0, 60_000).map(str), st.floats(-100, 100), max_size=3),
    "allowed_token_ids": st.lists(st.integers(0, 49_151), min_size=1, max_size=3),
    "bad_words": st.lists(st.sampled_from(["a", "hello", " ", "😀"]), max_size=3),
    "min_tokens": st.integers(0, 4),
    "ignore_eos": st.booleans(),
    "skip_special_tokens": st.booleans(),
    "n": st.integers(1, 3),
    "stream": st.booleans(),
    "echo": st.booleans(),
    "truncate_prompt_tokens": st.sampled_from([-1, 1, 5, 10_000]),
    "use_beam_search": st.booleans(),
    "stream_options": st.just({"include_usage": True}),
    "tools": st.just([{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]),
    "tool_choice": st.sampled_from(["none", "auto", "required"]),
    "structured_outputs": st.sampled_from(
        [{"json": {"type": "object"}}, {"regex": "[ab]+"}, {"choice": ["a", "b"]}, {"json_object": True}]
    ),
    "response_format": st.sampled_from([{"type": "text"}, {"type": "json_object"}]),
    "apply_chat_template": st.booleans(),
    "max_batch_size": st.integers(0, 3),
    "messages": st.just([{"role": "user", "content": "hello"}]),
    "prompt": st.sampled_from(["hello", [1, 2, 3], ["a", "b"], [[1], [2, 3]]]),
    "input": st.just("hello"),
}
"""Values that the worker and vLLM take, so that more jobs reach the engine."""

SAMPLING = (
    *job_fields.SAMPLING_FIELDS,
    *job_fields.SAMPLING_ALIASES,
    *job_fields.SAMPLING_EXTRAS,
    *job_fields.STRUCTURED_FIELDS,
    *job_fields.SAMPLING_RELICS,
    *job_fields.REJECTED_SAMPLING,
)
NATIVE = (
    *SAMPLING,
    *job_fields.PROMPT_FIELDS,
    *job_fields.CHAT_FIELDS,
    *job_fields.BATCH_FIELDS,
    *job_fields.IGNORED_FIELDS,
    *job_fields.OPERATOR_FIELDS,
    "stream",
    "extra_body",
)
BODY = (
    *NATIVE,
    *job_fields.BODY_LIST_LIMITS,
    *job_fields.BODY_INTEGER_LIMITS,
    "echo",
    "suffix",
    "stream_options",
    "priority",
    "vllm_xargs",
    "tokens",
    "query",
    "text",
    "max_output_tokens",
    "metadata",
    "system",
    "stop_sequences",
    "background",
    "return_token_ids",
    "prompt_embeds",
    "cache_salt",
    "request_id",
    "add_generation_prompt",
    "dimensions",
    "encoding_format",
    "instructions",
    "previous_response_id",
    "store",
    "include",
    "thinking",
    "reasoning",
    "questions",
    "token_ids",
    "features",
)


def _value(name: str) -> st.SearchStrategy[Any]:
    odd = SHAPED.get(name, JSON)
    return st.one_of(VALID[name], VALID[name], VALID[name], odd) if name in VALID else odd


def _object(names: tuple[str, ...], required: dict[str, st.SearchStrategy[Any]]) -> st.SearchStrategy[Any]:
    """An object with these fields and up to four of the others."""

    def fill(chosen: list[str]) -> st.SearchStrategy[Any]:
        fields = {name: _value(name) for name in chosen if name not in required}
        return st.fixed_dictionaries({**required, **fields})

    likely = sorted(set(names) & VALID.keys())
    chosen = st.sampled_from(likely) | st.sampled_from(sorted(set(names)))
    return st.lists(chosen, max_size=4, unique=True).flatmap(fill)


FEW = {"max_tokens": st.just(2)}
NATIVE_INPUT = (
    _object(tuple(VALID), {"prompt": VALID["prompt"], **FEW})
    | _object(NATIVE, {"prompt": PROMPT, **FEW})
    | _object(NATIVE, {"prompt": st.just("hello"), **FEW})
    | _object(NATIVE, {"messages": MESSAGES, **FEW})
    | st.fixed_dictionaries({"prompt": st.just("hello"), "sampling_params": _object(SAMPLING, FEW)})
    | st.fixed_dictionaries({"messages": MESSAGES, "extra_body": _object(NATIVE, FEW)})
)
USER = [{"role": "user", "content": "hello"}]
BODIES = (
    _object(tuple(VALID), {"messages": st.just(USER), **FEW})
    | _object(tuple(VALID), {"prompt": VALID["prompt"], **FEW})
    | _object(BODY, {"messages": st.just(USER), **FEW})
    | _object(BODY, {"messages": MESSAGES, **FEW})
    | _object(BODY, {"prompt": PROMPT, **FEW})
    | _object(BODY, {"prompt": st.just("hello"), **FEW})
    | _object(BODY, {"input": PROMPT | MESSAGES, "max_output_tokens": st.just(2)})
    | _object(BODY, {})
)
ROUTES = st.sampled_from(sorted((*INFERENCE_ROUTES, *OPERATOR_ROUTES))) | WORDS | TEXT
GENERATING = st.sampled_from(
    [
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/responses",
        "/v1/messages",
        "/tokenize",
        "/inference/v1/generate",
    ]
)
ROUTE_INPUT = (
    st.fixed_dictionaries({"openai_route": GENERATING, "openai_input": BODIES})
    | st.fixed_dictionaries({"openai_route": ROUTES, "openai_input": BODIES}, optional={"stream": SCALARS})
    | st.fixed_dictionaries({"route": ROUTES, "body": BODIES}, optional={"method": SCALARS})
    | st.fixed_dictionaries({"openai_input": BODIES | JSON})
    | st.fixed_dictionaries({"openai_route": ROUTES})
)
ANY_INPUT = NATIVE_INPUT | ROUTE_INPUT | JSON
JOB_IDS = st.sampled_from(["job", "a/../b", "a\nb", "\ud800", "x" * 500, "💥", "a?b#c", "%2e%2e"]) | TEXT
