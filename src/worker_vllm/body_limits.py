"""What in a route's body could stall other jobs, bounded by name; the rest of it is vLLM's business."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    BODY_INTEGER_LIMITS,
    BODY_LIST_LIMITS,
    BODY_LISTS_OF_OBJECTS,
    BODY_OBJECTS,
    BODY_TEXT_LIMITS,
    LISTS_OF_PARTS,
    MAX_INTEGER,
    MAX_LOGIT_BIAS,
    MAX_MEDIA_PARTS,
    MAX_MESSAGES,
    MAX_SEQUENCES,
    MAX_TOOLS,
    MAX_TOOLS_CHARACTERS,
)
from worker_vllm.job_values import describe, too_many
from worker_vllm.structured import check_schema_sizes, check_structured_sizes

_SAMPLING = "sampling_params"  # where the token route has what others have at the top


def check_limits(body: Mapping[str, Any]) -> None:
    """Raise RequestError, naming the field, for a body beyond a limit."""
    _check_types(body)
    for name, limit in BODY_LIST_LIMITS.items():
        count = _parts(body, name)
        if count > limit:
            raise too_many(name, "items", count, limit)
    sampling = body.get(_SAMPLING)
    for fields in (body, sampling) if isinstance(sampling, Mapping) else (body,):
        _check_sampling(fields)
    answers = _number(body.get("n")) or 1
    prompts = max(_parts(body, "prompt"), _parts(body, "messages"))
    if prompts * answers > MAX_SEQUENCES:
        raise too_many("n", "answers over all prompts", int(prompts * answers), MAX_SEQUENCES)
    for name in ("messages", "input"):
        check_messages(body.get(name), name)
    check_tools(body.get("tools"))
    check_schema_sizes(body)


def check_messages(messages: Any, name: str) -> None:
    """Raise RequestError for a conversation of too many messages, or with too many media."""
    if not isinstance(messages, list):
        return
    media = 0
    for conversation in (messages, *(item for item in messages if isinstance(item, list))):
        parts = [message for message in conversation if isinstance(message, Mapping)]
        if len(parts) > MAX_MESSAGES:
            raise too_many(name, "messages", len(parts), MAX_MESSAGES)
        media += sum(_media_parts(message.get("content")) for message in parts)
    if media > MAX_MEDIA_PARTS:
        raise too_many(name, "images, videos and other media", media, MAX_MEDIA_PARTS)


def check_tools(tools: Any) -> None:
    """Raise RequestError for too many tools, or too much of them: they become part of every prompt, and their
    schemas a grammar."""
    if not isinstance(tools, list):
        return
    if len(tools) > MAX_TOOLS:
        raise too_many("tools", "items", len(tools), MAX_TOOLS)
    check_schema_sizes({"tools": {"tools": tools}}, MAX_TOOLS_CHARACTERS)


def _check_types(body: Mapping[str, Any]) -> None:
    for name in BODY_OBJECTS:
        value = body.get(name)
        if value is not None and not isinstance(value, Mapping):
            raise RequestError(f"{name} must be an object, not {describe(value)}", param=name)
    for name in BODY_LISTS_OF_OBJECTS:
        value = body.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
            raise RequestError(f"{name} must be a list of objects, not {describe(value)}", param=name)
    if body.get("structured_outputs") and body.get("allowed_token_ids"):
        raise RequestError(
            "structured outputs and allowed_token_ids contradict each other", param="allowed_token_ids"
        )


def _check_sampling(fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        number = _number(value)
        if number is not None and abs(number) > BODY_INTEGER_LIMITS.get(name, MAX_INTEGER):
            limit = BODY_INTEGER_LIMITS.get(name, MAX_INTEGER)
            raise RequestError(f"{name} is beyond its limit, which is {limit}", param=name)
    for name, limit in BODY_TEXT_LIMITS.items():
        values = fields.get(name)
        for text in values if isinstance(values, list) else (values,):
            if isinstance(text, str) and len(text) > limit:
                raise too_many(name, "characters", len(text), limit)
        if isinstance(values, list) and len(values) > BODY_LIST_LIMITS[name]:
            raise too_many(name, "items", len(values), BODY_LIST_LIMITS[name])
    for name in ("logit_bias", "questions"):
        entries = fields.get(name)
        if isinstance(entries, Mapping) and len(entries) > MAX_LOGIT_BIAS:
            raise too_many(name, "items", len(entries), MAX_LOGIT_BIAS)
    check_structured_sizes(fields)


def _number(value: Any) -> float | int | None:
    """A number, or what vLLM's request models take for one; None for anything else."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and len(value) <= 400:
        try:
            value = float(value)
        except ValueError:
            return None
    if isinstance(value, float):
        return None if math.isnan(value) else value
    return value if isinstance(value, int) else None


def _media_parts(content: Any) -> int:
    return sum(1 for _ in _media(content)) if isinstance(content, list) else 0


def _media(content: list[Any]) -> Iterator[Any]:
    for part in content:
        if isinstance(part, Mapping) and not str(part.get("type", "text")).endswith("text"):
            yield part
        if isinstance(part, Mapping) and isinstance(inner := part.get("content"), list):
            yield from _media(inner)  # Anthropic's tool results


def _parts(body: Mapping[str, Any], name: str) -> int:
    """How many parts a list has; a flat list of token ids or messages is one."""
    value = body.get(name)
    if not isinstance(value, list):
        return 0
    if name in LISTS_OF_PARTS and not any(isinstance(item, str | list) for item in value[:1]):
        return 1
    return len(value)
