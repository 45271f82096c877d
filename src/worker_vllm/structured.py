"""Structured outputs: the many ways to ask for one, as one normalised object.

`structured_outputs`, OpenAI's `response_format`, the older `guided_*` fields and `guided_decoding` all end as
`{constraint: value}` with at most the refinements vLLM's StructuredOutputsParams has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    CONSTRAINT_FLAGS,
    CONSTRAINT_RELICS,
    CONSTRAINTS,
    MAX_CHOICE_CHARACTERS,
    MAX_CHOICES,
    MAX_GRAMMAR_CHARACTERS,
    MAX_REGEX_CHARACTERS,
    MAX_SCHEMA_CHARACTERS,
    MAX_SCHEMA_DEPTH,
    RESPONSE_FORMATS,
    STRUCTURED_FIELDS,
)
from worker_vllm.job_values import (
    copy_json,
    describe,
    read_bool,
    read_object,
    read_text,
    read_texts,
    too_many,
    unknown_field,
)

_WHITESPACE = "whitespace_pattern"
_KEYS = (*CONSTRAINTS, *CONSTRAINT_FLAGS, _WHITESPACE)
_GUIDED = "guided_"
# A structural tag wraps its schemas in objects of its own; vLLM allows for as many.
_TAG_WRAPPER_DEPTH = 16


def read_structured_outputs(fields: Mapping[str, Any], warnings: list[str]) -> dict[str, Any] | None:
    """What the fields ask for, None where they ask for nothing.

    Args:
        fields: any of STRUCTURED_FIELDS by name; others are ignored, as is null.
        warnings: dropped relics are added here.

    Returns exactly one of CONSTRAINTS, its schema as an object, its structural tag as text, and possibly
    refinements. Raises RequestError for bad values, for two constraints at once and for sizes beyond the
    limits.
    """
    given = {name: fields[name] for name in STRUCTURED_FIELDS if fields.get(name) is not None}
    merged: dict[str, Any] = {}
    for name, value in given.items():
        if name == "response_format":
            found = _response_format(value)
        elif name in ("structured_outputs", "guided_decoding"):
            found = _constraints(read_object(value, name), name, warnings)
        else:
            found = _constraints({name.removeprefix(_GUIDED): value}, name, warnings)
        for key, item in found.items():
            if key in merged and merged[key] != item:
                raise RequestError(f"{name} contradicts another constraint on the output", param=name)
            merged[key] = item
    chosen = [key for key in CONSTRAINTS if key in merged]
    if len(chosen) > 1:
        param = next(reversed(given))
        raise RequestError(
            f"only one constraint on the output is possible, not {', '.join(chosen)}", param=param
        )
    if merged and not chosen:
        param = next(reversed(given))
        raise RequestError(f"{param} needs one of {', '.join(CONSTRAINTS)}", param=param)
    return merged or None


def check_structured_sizes(fields: Mapping[str, Any]) -> None:
    """Refuse what is beyond the limits in a body that vLLM itself will read; its form is vLLM's business."""
    for name in ("structured_outputs", "response_format"):
        value = fields.get(name)
        if isinstance(value, Mapping):
            _check_size(value, name, MAX_SCHEMA_DEPTH + _TAG_WRAPPER_DEPTH)
    outputs = fields.get("structured_outputs")
    if not isinstance(outputs, Mapping):
        return
    limits = {"json": MAX_SCHEMA_CHARACTERS, "regex": MAX_REGEX_CHARACTERS, "grammar": MAX_GRAMMAR_CHARACTERS}
    for key, limit in limits.items():
        text = outputs.get(key)
        if isinstance(text, str) and len(text) > limit:
            raise too_many(f"structured_outputs.{key}", "characters", len(text), limit)
    choices = outputs.get("choice")
    if isinstance(choices, list):
        if len(choices) > MAX_CHOICES:
            raise too_many("structured_outputs.choice", "items", len(choices), MAX_CHOICES)
        longest = max((len(text) for text in choices if isinstance(text, str)), default=0)
        if longest > MAX_CHOICE_CHARACTERS:
            raise too_many("structured_outputs.choice", "characters", longest, MAX_CHOICE_CHARACTERS)


def check_schema_sizes(fields: Mapping[str, Any], limit: int = MAX_SCHEMA_CHARACTERS) -> None:
    """Refuse objects that hold schemas in a body of another make than OpenAI's first: the responses route's
    `text`, Anthropic's `output_config`, tools in an object of that name."""
    for name in ("text", "output_config", "output_format", "questions", "tools"):
        value = fields.get(name)
        if isinstance(value, Mapping):
            _check_size(value, name, MAX_SCHEMA_DEPTH + _TAG_WRAPPER_DEPTH, limit)


def _constraints(given: Mapping[str, Any], param: str, warnings: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        if value is None:
            continue
        if key in CONSTRAINT_RELICS:
            warnings.append(f"{param}: {key} is the operator's choice and was dropped")
        elif key not in _KEYS:
            raise unknown_field(key, _KEYS, param)
        elif key in CONSTRAINT_FLAGS:
            found[key] = read_bool(value, param)
        elif key == "json_object":
            if read_bool(value, param):
                found[key] = True
        else:
            found[key] = _read(key, value, param)
    return found


def _read(key: str, value: Any, param: str) -> Any:
    if key == "json":
        return _schema(value, param)
    if key == "choice":
        if isinstance(value, str) or not value:
            raise RequestError(f"{param} must be a list of texts, not {describe(value)}", param=param)
        return read_texts(value, param, MAX_CHOICES, MAX_CHOICE_CHARACTERS)
    if key == "structural_tag":
        return _structural_tag(value, param)
    return read_text(value, param, MAX_GRAMMAR_CHARACTERS if key == "grammar" else MAX_REGEX_CHARACTERS)


def _response_format(value: Any) -> dict[str, Any]:
    param = "response_format"
    given = read_object(value, param)
    kind = given.get("type")
    if kind not in RESPONSE_FORMATS:
        raise RequestError(
            f"{param}.type must be one of {', '.join(RESPONSE_FORMATS)}, not {describe(kind)}", param=param
        )
    if kind == "structural_tag":
        return {"structural_tag": _structural_tag(given, param)}
    known = ("type", "json_schema")
    for key, item in given.items():
        if key not in known and item is not None:
            raise unknown_field(key, known, param)
    if kind == "json_schema":
        wrapper = given.get("json_schema")
        if not isinstance(wrapper, Mapping) or wrapper.get("schema") is None:
            raise RequestError(f"{param}.json_schema must be an object holding a schema", param=param)
        return {"json": _schema(wrapper["schema"], param)}
    return {"json_object": True} if kind == "json_object" else {}


def _schema(value: Any, param: str) -> dict[str, Any]:
    """A JSON schema from an object or from its text."""
    if isinstance(value, str):
        value = _parse(value, param)
    if not isinstance(value, Mapping):
        raise RequestError(f"{param} must be a JSON schema (an object), not {describe(value)}", param=param)
    _check_size(value, param, MAX_SCHEMA_DEPTH)
    return read_object(value, param)


def _structural_tag(value: Any, param: str) -> str:
    tag = _parse(value, param) if isinstance(value, str) else value
    if not isinstance(tag, Mapping):
        raise RequestError(
            f"{param} must be a structural tag (an object), not {describe(value)}", param=param
        )
    _check_size(tag, param, MAX_SCHEMA_DEPTH + _TAG_WRAPPER_DEPTH)
    return json.dumps(read_object(tag, param))


def _parse(text: str, param: str) -> Any:
    if len(text) > MAX_SCHEMA_CHARACTERS:
        raise too_many(param, "characters", len(text), MAX_SCHEMA_CHARACTERS)
    try:
        return json.loads(text)
    except RecursionError:
        raise RequestError(f"{param} is nested too deeply", param=param) from None
    except ValueError as error:
        raise RequestError(f"{param} is not JSON text", param=param) from error


def _check_size(
    value: Mapping[str, Any], param: str, max_depth: int, limit: int = MAX_SCHEMA_CHARACTERS
) -> None:
    characters = len(json.dumps(copy_json(value, param, max_depth)))
    if characters > limit:
        raise too_many(param, "characters", characters, limit)
