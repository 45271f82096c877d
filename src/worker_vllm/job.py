"""`JobInput`: what one job asks for, validated once, never changed after.

Three shapes come in: native (`prompt` or `messages`), the OpenAI envelope (`openai_route`, `openai_input`),
and a call of any of vLLM's routes (`route`, `body`, `method`). The last two are one kind.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    BATCH_FIELDS,
    CHAT_FIELDS,
    CHAT_ROUTE,
    ENVELOPE_FIELDS,
    HOISTED_FIELDS,
    IGNORED_FIELDS,
    MAX_BATCH_SIZE,
    MAX_JSON_VALUES,
    MAX_NAME_CHARACTERS,
    MAX_SEQUENCES,
    METHODS_WITH_BODY,
    OPERATOR_FIELDS,
    PROMPT_FIELDS,
)
from worker_vllm.job_values import (
    copy_json,
    describe,
    label,
    measure,
    read_bool,
    read_float,
    read_int,
    read_object,
    read_text,
    too_many,
    unknown_field,
)
from worker_vllm.prompts import read_chat, read_messages, read_prompts
from worker_vllm.route_body import operator_fields, read_body
from worker_vllm.routes import normalise_route, read_method
from worker_vllm.sampling import KNOWN_SAMPLING, Sampling, merge_fields

_NATIVE_FIELDS = frozenset(
    (*PROMPT_FIELDS, *CHAT_FIELDS, *BATCH_FIELDS, *IGNORED_FIELDS, *KNOWN_SAMPLING, "stream", "extra_body")
)
# Where a native job's fields may stand, and which ones there besides sampling parameters.
_PLACES = {
    "input": _NATIVE_FIELDS,
    "extra_body": _NATIVE_FIELDS - {"extra_body", "sampling_params", *BATCH_FIELDS},
    "sampling_params": frozenset((*HOISTED_FIELDS, *IGNORED_FIELDS)),
}
_ROUTE_EXTRAS = frozenset((*BATCH_FIELDS, "stream", "method", "use_openai_format"))
_ALL_FIELDS = frozenset((*_NATIVE_FIELDS, *ENVELOPE_FIELDS, *OPERATOR_FIELDS))
_SHAPES = (
    "input needs one of: prompt or messages; openai_route (with openai_input); route (with body and method)"
)


class BatchOptions(BaseModel):
    """How a job wants its stream batched; None where it does not say."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    min_batch_size: int | None = None
    max_batch_size: int | None = None
    growth: float | None = None


# pydantic would copy a default, though nobody can change it.
_NO_BATCHING, _NO_SAMPLING = BatchOptions(), Sampling()


class JobInput(BaseModel):
    """One job's input. Make it with `parse`.

    Attributes:
        kind: "prompt" and "messages" are native jobs, "route" is a call of a route of vLLM's app.
        prompts: kind prompt: texts, or tuples of token ids.
        many: the caller gave a list of prompts, even of one: each gets its own item with a `prompt_index`.
        messages: kind messages: role/content objects as vLLM's chat route takes them.
        chat: how messages become a prompt, by the chat route's field names (CHAT_FIELDS); only those given.
        apply_chat_template: kind prompt: each text is one user message.
        sampling: native kinds.
        model: native kinds: a served name or adapter; None for the default.
        stream: whether the answer is wanted in pieces, for every kind.
        batch: how to batch them.
        route: kind route: a path in normal form (`routes.normalise_route`), allowed or not.
        query: its query, without "?".
        method: in capitals.
        body: None for a request without one.
        warnings: what was accepted and dropped, for the log; holds no values.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["prompt", "messages", "route"]
    prompts: tuple[str | tuple[int, ...], ...] = ()
    many: bool = False
    messages: tuple[dict[str, Any], ...] = ()
    chat: dict[str, Any] = {}
    apply_chat_template: bool = False
    sampling: Sampling = Field(default_factory=lambda: _NO_SAMPLING)
    model: str | None = None
    stream: bool = False
    batch: BatchOptions = Field(default_factory=lambda: _NO_BATCHING)
    route: str = ""
    query: str = ""
    method: str = ""
    body: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()

    @property
    def operator_fields(self) -> tuple[str, ...]:
        """Fields of a route's body that only the operator can allow a job to set (OPERATOR_FIELDS)."""
        return operator_fields(self.body)

    @classmethod
    def parse(cls, job_input: object) -> JobInput:
        """Read job["input"], which is left as it was.

        Raises RequestError (a 400 naming the field) for whatever is not exactly understood: nothing that a
        caller sends is ignored in silence.
        """
        if not isinstance(job_input, Mapping):
            raise RequestError(f"input must be an object, not {describe(job_input)}", param="input")
        if measure(job_input, MAX_JSON_VALUES + 1)[0] > MAX_JSON_VALUES:
            raise RequestError(f"input holds more values than the limit of {MAX_JSON_VALUES}", param="input")
        given: dict[str, Any] = {}
        for name, value in job_input.items():
            if not isinstance(name, str):
                raise RequestError("input holds a key that is not text", param="input")
            # Empty means absent for the envelope: the gateway sends openai_input as null, {} or not at all.
            if value is not None and not (name in ENVELOPE_FIELDS and value in ("", {}, [])):
                given[name] = copy_json(value, label(name))
        warnings: list[str] = []
        if "openai_route" in given or "openai_input" in given:
            fields = _route_fields(given, "openai_route", "openai_input", warnings)
        elif "route" in given:
            fields = _route_fields(given, "route", "body", warnings)
        else:
            fields = _native_fields(given, warnings)
        return cls(**fields, batch=_batch_options(given), warnings=tuple(dict.fromkeys(warnings)))


def _route_fields(given: Mapping[str, Any], route: str, body: str, warnings: list[str]) -> dict[str, Any]:
    for name, value in given.items():
        if name in (route, body):
            continue
        if name not in _ROUTE_EXTRAS:
            if name not in _ALL_FIELDS:
                raise unknown_field(name, _ALL_FIELDS, "input")
            if value not in ("", [], {}, False):
                raise RequestError(f"{name} cannot be combined with {route}", param=name)
    _warn_of_ignored(given, warnings)
    path, query = normalise_route(given.get(route, CHAT_ROUTE), route)
    content = read_body(given[body], body, warnings) if body in given else None
    method = _method(given, content)
    if content is None and method in METHODS_WITH_BODY:
        content = {}
    if content and method in ("GET", "HEAD"):
        raise RequestError(f"a {method} request has no body", param=body)
    return {
        "kind": "route",
        "route": path,
        "query": query,
        "method": method,
        "body": content,
        "stream": _merge_stream(given, content, warnings),
    }


def _method(given: Mapping[str, Any], content: Mapping[str, Any] | None) -> str:
    if "method" in given:
        return read_method(given["method"], "method")
    return "POST" if content else "GET"


def _merge_stream(given: Mapping[str, Any], content: dict[str, Any] | None, warnings: list[str]) -> bool:
    """`stream` beside a route means the body's; it is put there."""
    wanted = read_bool(given["stream"], "stream") if "stream" in given else None
    inside = None if content is None else content.get("stream")
    if wanted is not None and inside is not None and wanted != inside:
        raise RequestError("stream is given twice with different values", param="stream")
    if wanted and inside is None:
        if content is None:
            warnings.append("stream was dropped: a request without a body is not streamed")
            return False
        content["stream"] = True
    return bool(wanted or inside)


def _native_fields(given: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    fields, sampling_fields = _partition(given, warnings)
    kind_fields = _prompt_fields(fields, warnings)
    sampling = Sampling.parse(sampling_fields, warnings)
    answers = sampling.beam["n"] if sampling.beam else sampling.params.get("n", 1)
    sequences = len(kind_fields.get("prompts", ())) * answers
    if sequences > MAX_SEQUENCES:
        raise too_many("prompt", "answers over all prompts", sequences, MAX_SEQUENCES)
    named = fields.get("model", "") != ""
    model = read_text(fields["model"], "model", MAX_NAME_CHARACTERS) if named else None
    stream = read_bool(fields["stream"], "stream") if "stream" in fields else False
    return {**kind_fields, "sampling": sampling, "model": model, "stream": stream}


def _partition(given: Mapping[str, Any], warnings: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The job's fields proper, and the sampling parameters from all the places where they may stand."""
    fields: dict[str, Any] = {}
    sampling: dict[str, Any] = {}
    for place, proper in _PLACES.items():
        content = given if place == "input" else read_object(given.get(place, {}), place)
        for name, value in content.items():
            if name in OPERATOR_FIELDS and value is not None:
                setting = OPERATOR_FIELDS[name]
                raise RequestError(f"{name} is for the operator to set ({setting})", param=name)
            if name in KNOWN_SAMPLING:
                merge_fields(sampling, {name: value})
            elif name in proper:
                merge_fields(fields, {name: value})
            elif name in ENVELOPE_FIELDS:
                raise RequestError(f"{name} needs {_partner(name)}", param=name)
            else:
                raise unknown_field(name, proper | KNOWN_SAMPLING, place)
    _warn_of_ignored(fields, warnings)
    return fields, sampling


def _prompt_fields(fields: Mapping[str, Any], warnings: list[str]) -> dict[str, Any]:
    messages, prompt = fields.get("messages"), fields.get("prompt")
    if messages in ("", []) and prompt is not None:
        messages = None
    if messages is not None and prompt is not None:
        warnings.append("prompt was dropped: messages win over it")
    source = "prompt" if messages is None else "messages"
    value = prompt if messages is None else messages
    if value is None:
        raise RequestError(_SHAPES, param="input")
    template = "apply_chat_template" in fields and read_bool(
        fields["apply_chat_template"], "apply_chat_template"
    )
    chat = read_chat({name: fields[name] for name in CHAT_FIELDS if name in fields})
    is_messages = isinstance(value, list) and isinstance(next(iter(value), None), dict)
    if is_messages or (source == "messages" and not isinstance(value, str)):
        if "apply_chat_template" in fields and not template:
            warnings.append("apply_chat_template was dropped: messages always go through the template")
        return {"kind": "messages", "messages": read_messages(value, source), "chat": chat}
    prompts, many = read_prompts(value, source)
    if chat and not template:
        name = next(iter(chat))
        raise RequestError(f"{name} needs messages or apply_chat_template", param=name)
    if template and not all(isinstance(text, str) for text in prompts):
        raise RequestError("apply_chat_template needs text, not token ids", param="apply_chat_template")
    return {
        "kind": "prompt",
        "prompts": prompts,
        "many": many,
        "apply_chat_template": template,
        "chat": chat,
    }


def _batch_options(given: Mapping[str, Any]) -> BatchOptions:
    found: dict[str, Any] = {}
    for name, option in BATCH_FIELDS.items():
        # Zero and empty text have always meant "the worker's own".
        if given.get(name, "") != "":
            if option == "batch_size_growth_factor":
                value: float | None = read_float(given[name], name, 0) or None
            else:
                value = read_int(given[name], name, 0, MAX_BATCH_SIZE) or None
            merge_fields(found, {option: value})
    return BatchOptions(
        min_batch_size=found.get("min_batch_size"),
        max_batch_size=found.get("max_batch_size"),
        growth=found.get("batch_size_growth_factor"),
    )


def _warn_of_ignored(fields: Mapping[str, Any], warnings: list[str]) -> None:
    warnings.extend(f"{name} was dropped: {why}" for name, why in IGNORED_FIELDS.items() if name in fields)


def _partner(name: str) -> str:
    return "route" if name in ("body", "method") else "openai_route"
