"""What can be said of a job's input before it is read, or where it cannot be."""

from __future__ import annotations

from collections.abc import Mapping

from worker_vllm import job_fields
from worker_vllm.job_fields import LARGE_JOB
from worker_vllm.job_values import measure

_FIELDS = frozenset(
    (
        *(name for table in vars(job_fields).values() if isinstance(table, tuple | dict) for name in table),
        *("input", "stream", "extra_body", "url", "body", "query"),
    )
)


def is_large(job_input: object) -> bool:
    """Whether reading an input takes long enough to be done beside the event loop."""
    values, size = measure(job_input, LARGE_JOB)
    return values + size >= LARGE_JOB


def asks_for_route(job_input: object) -> bool:
    """Whether an input, readable or not, is meant as a call of a route."""
    return isinstance(job_input, Mapping) and any(
        job_input.get(name) not in (None, "", {}, []) for name in ("openai_route", "openai_input", "route")
    )


def asks_for_events(job_input: object) -> bool:
    """Whether an input, readable or not, is meant as a call of a route whose answer is streamed."""
    if not isinstance(job_input, Mapping) or not asks_for_route(job_input):
        return False
    places = (job_input, job_input.get("openai_input"), job_input.get("body"))
    return any(isinstance(place, Mapping) and place.get("stream") in (True, "true") for place in places)


def known_field(param: str | None) -> str | None:
    """The field that an error names, where jobs have such a field: anything else is a caller's own text."""
    root = (param or "").split(".")[0].split("[")[0]
    return root if root in _FIELDS else None
