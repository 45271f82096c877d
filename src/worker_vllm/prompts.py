"""A native job's prompt and messages, in every form they may take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker_vllm.body_limits import check_messages, check_tools
from worker_vllm.errors import RequestError
from worker_vllm.job_fields import (
    MAX_INPUTS,
    MAX_NAME_CHARACTERS,
    MAX_PROMPTS,
    MAX_TOKEN_ID,
    NATIVE_TOOL_CHOICES,
)
from worker_vllm.job_values import describe, read_bool, read_int, read_object, read_text, too_many

_CHAT_BOOLEANS = ("add_generation_prompt", "continue_final_message", "add_special_tokens")
_CHAT_LISTS = ("tools", "documents")
# The renderer would take these two as its own arguments, not as the template's.
_RENDERER_ARGUMENTS = ("chat_template", "tokenize")

Prompt = str | tuple[int, ...]


def read_prompts(value: Any, param: str) -> tuple[tuple[Prompt, ...], bool]:
    """Prompts, and whether they came as a list of several: a text, texts, token ids, or lists of token ids.

    The value is plain JSON that the caller owns (`copy_json`).
    """
    if isinstance(value, str):
        return (value,), False
    if not isinstance(value, list):
        raise RequestError(f"{param} must be text or a list, not {describe(value)}", param=param)
    if not value:
        raise RequestError(f"{param} must not be empty", param=param)
    if all(isinstance(item, str) for item in value):
        return _bounded(tuple(value), param), True
    if all(isinstance(item, list) for item in value):
        return tuple(_token_ids(item, param) for item in _bounded(tuple(value), param)), True
    return (_token_ids(value, param),), False


def read_messages(value: Any, param: str) -> tuple[dict[str, Any], ...]:
    """Messages: a list of objects, each with a role. Their contents are the chat renderer's business."""
    if not isinstance(value, list):
        raise RequestError(f"{param} must be a list of messages or text, not {describe(value)}", param=param)
    if not value:
        raise RequestError(f"{param} must not be empty", param=param)
    for position, message in enumerate(value):
        where = f"{param}[{position}]"
        if not isinstance(message, Mapping):
            raise RequestError(f"{where} must be an object, not {describe(message)}", param=param)
        if not isinstance(message.get("role"), str):
            raise RequestError(f"{where} needs a role", param=param)
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise RequestError(f"{where}.content must be text or a list of parts", param=param)
    check_messages(value, param)
    return tuple(value)


def read_chat(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that shape how messages become a prompt, by their names on vLLM's chat route."""
    chat: dict[str, Any] = {}
    for name, value in given.items():
        if name in _CHAT_BOOLEANS:
            chat[name] = read_bool(value, name)
        elif name in _CHAT_LISTS:
            chat[name] = _objects(value, name)
            if name == "tools":
                check_tools(value)
        elif name == "chat_template_kwargs":
            chat[name] = _template_arguments(value)
        elif name == "tool_choice":
            if value not in NATIVE_TOOL_CHOICES:
                raise RequestError(
                    "tool_choice can be none or auto here; use openai_route for tool calls", param=name
                )
            chat[name] = value
        else:
            chat[name] = read_text(value, name, MAX_NAME_CHARACTERS)
    # vLLM refuses both at once, and generation prompts are its default: continuing can only mean one thing.
    if chat.get("continue_final_message"):
        chat.setdefault("add_generation_prompt", False)
    return chat


def _bounded(items: tuple[Any, ...], param: str) -> tuple[Any, ...]:
    if len(items) > MAX_PROMPTS:
        raise too_many(param, "prompts", len(items), MAX_PROMPTS)
    return items


def _token_ids(items: list[Any], param: str) -> tuple[int, ...]:
    if not items:
        raise RequestError(f"{param} must not hold an empty list of token ids", param=param)
    if set(map(type, items)) == {int} and min(items) >= 0 and max(items) <= MAX_TOKEN_ID:
        return tuple(items)
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int):
            raise RequestError(
                f"{param} must be text, texts, token ids, lists of token ids or messages; "
                f"it holds {describe(item)} among others",
                param=param,
            )
        read_int(item, param, 0, MAX_TOKEN_ID)
    return tuple(items)


def _objects(value: Any, name: str) -> list[dict[str, Any]]:
    if not isinstance(value, list) or not all(isinstance(item, Mapping) for item in value):
        raise RequestError(f"{name} must be a list of objects, not {describe(value)}", param=name)
    if len(value) > MAX_INPUTS:
        raise too_many(name, "items", len(value), MAX_INPUTS)
    return value


def _template_arguments(value: Any) -> dict[str, Any]:
    arguments = read_object(value, "chat_template_kwargs")
    for name in _RENDERER_ARGUMENTS:
        if name in arguments:
            raise RequestError(
                f"chat_template_kwargs.{name} cannot be set by a job", param="chat_template_kwargs"
            )
    return arguments
