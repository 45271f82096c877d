"""Where a job can hold a constraint that would stall the engine."""

from __future__ import annotations

import json
from typing import Any

import pytest

from worker_vllm.constraint_ways import check_constraints
from worker_vllm.errors import RequestError

PATTERN = r"(\w{0,500}[^x]{0,500}){0,50}"
GRAMMAR = 'root ::= root root | "" | [^a]'


@pytest.mark.parametrize(
    "value",
    [
        {"regex": PATTERN},
        {"json": {"properties": {"a": {"type": "string", "pattern": PATTERN}}}},
        {"json": json.dumps({"items": {"pattern": PATTERN}})},
        {"schema": {"patternProperties": {PATTERN: {}}}},
        [{"function": {"parameters": {"items": [{"pattern": PATTERN}]}}}],
        {"structural_tag": json.dumps({"format": {"type": "regex", "pattern": PATTERN}})},
        {"grammar": GRAMMAR},
        {"structured_outputs": {"grammar": GRAMMAR}},
        {"structural_tag": json.dumps({"format": {"type": "grammar", "grammar": GRAMMAR}})},
        {"type": "structural_tag", "format": {"elements": [{"type": "grammar", "grammar": GRAMMAR}]}},
    ],
    ids=lambda value: str(value)[:40],
)
def test_it_is_found_wherever_it_stands(value: Any) -> None:
    with pytest.raises(RequestError, match="too many ways") as caught:
        check_constraints(value, "structured_outputs")
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"properties": {"regex": {"type": "string"}, "pattern": {"type": "string"}, "grammar": {}}},
        {"grammar": 'root ::= "a" | root "b"'},
        {"json": "{", "structural_tag": "[" * 5000},
    ],
    ids=str,
)
def test_the_rest_is_let_pass(value: Any) -> None:
    check_constraints(value, "x")
