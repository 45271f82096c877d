"""Constraints on the output that would stall the engine, found wherever a job can hold one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from worker_vllm.errors import RequestError
from worker_vllm.grammar_ways import is_ambiguous_grammar
from worker_vllm.regex_ways import is_ambiguous

CONSTRAINING_FIELDS = (
    "structured_outputs",
    "response_format",
    "text",
    "output_config",
    "tools",
    "questions",
    "sampling_params",
)
"""Fields of a route's body from which vLLM makes constraints."""

_PATTERN_KEYS = ("regex", "pattern")
_GRAMMAR_KEY = "grammar"
# Where vLLM takes an object's JSON text, too.
_TEXT_KEYS = ("json", "structural_tag")


def check_constraints(value: Any, param: str) -> None:
    """Raise RequestError where a regular expression or a grammar in `value`, constraint or schema, takes the
    same text in too many ways."""
    for key, text in _constraints(value):
        if key == _GRAMMAR_KEY and is_ambiguous_grammar(text):
            raise RequestError(
                f"{param} holds a grammar that takes the same text in too many ways, which would stall the "
                "engine: let no rule both begin and end with itself (a level of rules per precedence), and "
                "let what is repeated begin or end with what nothing beside it takes",
                param=param,
            )
        if key != _GRAMMAR_KEY and is_ambiguous(text):
            raise RequestError(
                f"{param} holds a regular expression that takes the same text in too many ways, which would "
                "stall the engine: let what is repeated begin or end with what nothing beside it takes, and "
                "use * or + in place of {m,n}",
                param=param,
            )


def _constraints(value: Any) -> Iterator[tuple[str, str]]:
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, Mapping):
            left.extend(item.values())
            for key in (*_PATTERN_KEYS, _GRAMMAR_KEY):
                if isinstance(item.get(key), str):
                    yield key, item[key]
            left.extend(_parsed(item[key]) for key in _TEXT_KEYS if isinstance(item.get(key), str))
            named = item.get("patternProperties")
            yield from (("pattern", name) for name in named) if isinstance(named, Mapping) else ()
        elif isinstance(item, list):
            left.extend(item)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None  # vLLM says what is wrong with it
