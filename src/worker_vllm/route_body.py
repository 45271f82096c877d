"""The body of a job that calls one of vLLM's routes: copied, strict where vLLM is not, else left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    BODY_INTEGER_LIMITS,
    BODY_LIST_LIMITS,
    LISTS_OF_PARTS,
    MAX_SEQUENCES,
    OPERATOR_FIELDS,
    SAMPLING_RELICS,
    STRUCTURED_FIELDS,
)
from worker_vllm.job_values import read_bool, read_object, too_many
from worker_vllm.sampling import merge_fields
from worker_vllm.structured import check_structured_sizes, read_structured_outputs

# vLLM reads these two itself; the rest are the older names that it ignores.
_GUIDED_FIELDS = tuple(
    name for name in STRUCTURED_FIELDS if name not in ("structured_outputs", "response_format")
)
_BACKEND = "guided_decoding_backend"


def read_body(value: Any, param: str, warnings: list[str]) -> dict[str, Any]:
    """A copy of the body with `extra_body` unwrapped, guided_* as structured_outputs, `stream` a boolean.

    Everything else is vLLM's business, except what could stall other jobs. Raises RequestError beyond the
    limits, and for a bad `stream` or a bad value of a field that is rewritten. `warnings` gets what was
    dropped.
    """
    body = read_object(value, param)
    extra = body.pop("extra_body", None)
    if extra is not None:
        merge_fields(body, read_object(extra, "extra_body"))
    if body.get("stream") is not None:
        body["stream"] = read_bool(body["stream"], "stream")
    _map_guided_fields(body, warnings)
    _check_limits(body)
    return body


def operator_fields(body: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The fields in a body that a job may only set where the operator allows it."""
    if body is None:
        return ()
    names = [name for name in OPERATOR_FIELDS if body.get(name) is not None]
    template = body.get("chat_template_kwargs")
    if isinstance(template, Mapping) and "chat_template" in template:
        names.append("chat_template_kwargs.chat_template")
    return tuple(names)


def _map_guided_fields(body: dict[str, Any], warnings: list[str]) -> None:
    if body.pop(_BACKEND, None) is not None:
        warnings.append(f"{_BACKEND} was dropped: {SAMPLING_RELICS[_BACKEND]}")
    guided = {name: body.pop(name) for name in _GUIDED_FIELDS if name in body}
    if any(value is not None for value in guided.values()):
        guided["structured_outputs"] = body.get("structured_outputs")
        body["structured_outputs"] = read_structured_outputs(guided, warnings)


def _check_limits(body: Mapping[str, Any]) -> None:
    for name, limit in BODY_INTEGER_LIMITS.items():
        value = body.get(name)
        if isinstance(value, int | float) and value > limit:
            raise RequestError(f"{name} is {value}; the limit is {limit}", param=name)
    for name, limit in BODY_LIST_LIMITS.items():
        count = _parts(body, name)
        if count > limit:
            raise too_many(name, "items", count, limit)
    n = body.get("n")
    sequences = _parts(body, "prompt") * n if isinstance(n, int) else 0
    if sequences > MAX_SEQUENCES:
        raise too_many("n", "answers over all prompts", sequences, MAX_SEQUENCES)
    check_structured_sizes(body)


def _parts(body: Mapping[str, Any], name: str) -> int:
    """How many parts a list has; a flat list of token ids or messages is one."""
    value = body.get(name)
    if not isinstance(value, list):
        return 0
    if name in LISTS_OF_PARTS and not any(isinstance(item, str | list) for item in value[:1]):
        return 1
    return len(value)
