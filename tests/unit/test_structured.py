from __future__ import annotations

import json
from typing import Any

import pytest

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    MAX_CHOICES,
    MAX_GRAMMAR_CHARACTERS,
    MAX_REGEX_CHARACTERS,
    MAX_SCHEMA_CHARACTERS,
    MAX_SCHEMA_DEPTH,
)
from worker_vllm.structured import check_structured_sizes, read_structured_outputs

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = {"type": "structural_tag", "format": {"type": "any_text"}}


def read(**fields: Any) -> dict[str, Any] | None:
    return read_structured_outputs(fields, [])


def refusal(**fields: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(**fields)
    return caught.value


def deep_schema(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {}
    for _ in range(depth - 1):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("fields", "outputs"),
    [
        ({}, None),
        ({"guided_json": None, "response_format": None}, None),
        ({"guided_json": SCHEMA}, {"json": SCHEMA}),
        ({"guided_json": json.dumps(SCHEMA)}, {"json": SCHEMA}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"guided_choice": ["yes", "no"]}, {"choice": ["yes", "no"]}),
        ({"guided_grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
        ({"guided_json_object": "true"}, {"json_object": True}),
        ({"guided_json_object": False}, None),
        ({"structured_outputs": {"json": SCHEMA}}, {"json": SCHEMA}),
        (
            {"structured_outputs": {"regex": "a", "disable_any_whitespace": "true", "json": None}},
            {"regex": "a", "disable_any_whitespace": True},
        ),
        (
            {"guided_decoding": {"choice": ["a"], "whitespace_pattern": " "}},
            {"choice": ["a"], "whitespace_pattern": " "},
        ),
        (
            {"guided_json": SCHEMA, "guided_whitespace_pattern": " "},
            {"json": SCHEMA, "whitespace_pattern": " "},
        ),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "text"}, "guided_regex": "a"}, {"regex": "a"}),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "a", "strict": True, "schema": SCHEMA},
                }
            },
            {"json": SCHEMA},
        ),
        ({"response_format": TAG}, {"structural_tag": json.dumps(TAG)}),
        ({"structured_outputs": {"structural_tag": TAG}}, {"structural_tag": json.dumps(TAG)}),
        ({"structured_outputs": {"structural_tag": json.dumps(TAG)}}, {"structural_tag": json.dumps(TAG)}),
        ({"guided_json": SCHEMA, "structured_outputs": {"json": json.dumps(SCHEMA)}}, {"json": SCHEMA}),
    ],
)
def test_every_spelling_gives_one_normal_form(fields: dict[str, Any], outputs: dict[str, Any] | None) -> None:
    assert read(**fields) == outputs


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_json": 5}, "guided_json"),
        ({"guided_json": "{not json"}, "guided_json"),
        ({"guided_json": "[1]"}, "guided_json"),
        ({"guided_json": []}, "guided_json"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": ""}, "guided_regex"),
        ({"guided_choice": "yes"}, "guided_choice"),
        ({"guided_choice": []}, "guided_choice"),
        ({"guided_choice": [1]}, "guided_choice"),
        ({"guided_choice": {"a": 1}}, "guided_choice"),
        ({"guided_grammar": {}}, "guided_grammar"),
        ({"guided_json_object": "yes"}, "guided_json_object"),
        ({"guided_json": SCHEMA, "guided_regex": "a"}, "guided_regex"),
        ({"guided_json": SCHEMA, "structured_outputs": {"json": {}}}, "guided_json"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern"),
        ({"structured_outputs": {"disable_any_whitespace": True}}, "structured_outputs"),
        ({"structured_outputs": {"jsn": SCHEMA}}, "jsn"),
        ({"structured_outputs": "json"}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": 5}}, "structured_outputs"),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"response_format": "json_object"}, "response_format"),
        ({"response_format": {"type": "json"}}, "response_format"),
        ({"response_format": {}}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}}, "response_format"),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, "schema"),
        ({"response_format": {"type": ["json_object"]}}, "response_format"),
    ],
)
def test_a_bad_constraint_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    assert refusal(**fields).param == param


def test_the_former_backend_choices_are_dropped_with_a_warning() -> None:
    warnings: list[str] = []
    fields = {"guided_decoding": {"regex": "a", "backend": "outlines", "disable_fallback": True}}
    assert read_structured_outputs(fields, warnings) == {"regex": "a"}
    assert len(warnings) == 2
    assert "backend" in warnings[0]


def test_the_given_schema_is_copied() -> None:
    schema = {"type": "object", "required": ["a"]}
    outputs = read(guided_json=schema)
    assert outputs is not None
    outputs["json"]["required"].append("b")
    assert schema["required"] == ["a"]


def test_sizes_are_limited() -> None:
    big = {"enum": ["x" * MAX_SCHEMA_CHARACTERS]}
    for fields in (
        {"guided_json": big},
        {"guided_json": json.dumps(big)},
        {"guided_regex": "a" * (MAX_REGEX_CHARACTERS + 1)},
        {"guided_grammar": "a" * (MAX_GRAMMAR_CHARACTERS + 1)},
        {"guided_choice": ["a"] * (MAX_CHOICES + 1)},
        {"response_format": {**TAG, "x": "y" * MAX_SCHEMA_CHARACTERS}},
    ):
        assert "the limit is" in refusal(**fields).message


def test_schemas_have_a_depth_whether_they_come_as_text_or_not() -> None:
    assert read(guided_json=deep_schema(MAX_SCHEMA_DEPTH)) is not None
    assert "deeply" in refusal(guided_json=deep_schema(MAX_SCHEMA_DEPTH + 1)).message
    assert "deeply" in refusal(guided_json='{"a":' * 5000 + "1" + "}" * 5000).message
    assert "deeply" in refusal(guided_json=json.dumps(deep_schema(MAX_SCHEMA_DEPTH + 1))).message


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"structured_outputs": {"json": SCHEMA, "regex": 5, "unknown": []}},
        {"response_format": {"type": "whatever"}},
        {"structured_outputs": "x", "response_format": 5},
    ],
)
def test_the_size_check_leaves_forms_to_vllm(body: dict[str, Any]) -> None:
    check_structured_sizes(body)


@pytest.mark.parametrize(
    "body",
    [
        {"structured_outputs": {"json": "x" * (MAX_SCHEMA_CHARACTERS + 1)}},
        {"structured_outputs": {"regex": "x" * (MAX_REGEX_CHARACTERS + 1)}},
        {"structured_outputs": {"grammar": "x" * (MAX_GRAMMAR_CHARACTERS + 1)}},
        {"structured_outputs": {"choice": ["x"] * (MAX_CHOICES + 1)}},
        {"structured_outputs": {"json": {"enum": ["x" * MAX_SCHEMA_CHARACTERS]}}},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": deep_schema(90)}}},
    ],
)
def test_the_size_check_refuses_what_would_stall_others(body: dict[str, Any]) -> None:
    with pytest.raises(RequestError):
        check_structured_sizes(body)
