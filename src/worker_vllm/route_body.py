"""The body of a job that calls one of vLLM's routes: copied, strict where vLLM is not, else left alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker_vllm.body_limits import check_limits
from worker_vllm.job_fields import OPERATOR_FIELDS, SAMPLING_RELICS, STRUCTURED_FIELDS
from worker_vllm.job_values import read_bool, read_object
from worker_vllm.sampling import merge_fields
from worker_vllm.structured import read_structured_outputs

# vLLM reads these two itself; the rest are the older names that it ignores.
_GUIDED_FIELDS = tuple(
    name for name in STRUCTURED_FIELDS if name not in ("structured_outputs", "response_format")
)
_BACKEND = "guided_decoding_backend"
# Objects in a body whose keys reach the template's, the processor's or the engine's own arguments.
_INNER_PLACES = (
    "chat_template_kwargs",
    "vllm_xargs",
    "extra_args",
    "sampling_params",
    "sampling_params.extra_args",
)


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
    check_limits(body)
    return body


def operator_fields(body: Mapping[str, Any] | None) -> tuple[str, ...]:
    """The fields in a body that a job may only set where the operator allows it."""
    if body is None:
        return ()
    names = [name for name in OPERATOR_FIELDS if body.get(name) is not None]
    for place in _INNER_PLACES:
        inner: Any = body
        for key in place.split("."):
            inner = inner.get(key) if isinstance(inner, Mapping) else None
        if isinstance(inner, Mapping):
            names += [f"{place}.{name}" for name in OPERATOR_FIELDS if name in inner]
    return tuple(names)


def _map_guided_fields(body: dict[str, Any], warnings: list[str]) -> None:
    if body.pop(_BACKEND, None) is not None:
        warnings.append(f"{_BACKEND} was dropped: {SAMPLING_RELICS[_BACKEND]}")
    guided = {name: body.pop(name) for name in _GUIDED_FIELDS if name in body}
    if any(value is not None for value in guided.values()):
        guided["structured_outputs"] = body.get("structured_outputs")
        body["structured_outputs"] = read_structured_outputs(guided, warnings)
