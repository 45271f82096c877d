"""Readers of a job's values, one per kind: each returns the value it means or raises a 400 naming the field.

Every number and boolean may also come as text, since forms and shells send nothing else. `None` is never
passed in: null means "not given" and is left out before.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Collection, Mapping
from typing import Any

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import MAX_INTEGER, MAX_INTEGER_BITS, MAX_JSON_DEPTH, MEANT
from worker_vllm.wire import clean_text

_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_FLOAT = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_SHOWN_CHARACTERS = 40
# difflib's time grows with the square of the length, and no field's name is this long.
_COMPARED_CHARACTERS = 64


def read_bool(value: Any, param: str) -> bool:
    """True or false, or those words as text in any case."""
    if isinstance(value, bool):
        return value
    word = value.strip().lower() if isinstance(value, str) and len(value) < _SHOWN_CHARACTERS else ""
    if word in ("true", "false"):
        return word == "true"
    raise RequestError(f"{param} must be true or false, not {describe(value)}", param=param)


def read_int(value: Any, param: str, minimum: int = -MAX_INTEGER - 1, maximum: int = MAX_INTEGER) -> int:
    """A whole number within the bounds, both included; "12" and 12.0 are 12."""
    number = _int_of(value)
    if number is None:
        raise RequestError(f"{param} must be a whole number, not {describe(value)}", param=param)
    if not minimum <= number <= maximum:
        raise RequestError(f"{param} must be {_range(minimum, maximum)}, not {describe(number)}", param=param)
    return number


def read_float(
    value: Any, param: str, minimum: float = -math.inf, maximum: float = math.inf, *, above: bool = False
) -> float:
    """A finite number within the bounds, both included; with `above` it must exceed the lower one."""
    if isinstance(value, str) and _FLOAT.fullmatch(value.strip()):
        value = float(value.strip())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"{param} must be a number, not {describe(value)}", param=param)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise RequestError(f"{param} must be a finite number", param=param)
    if not minimum <= number <= maximum or (above and number == minimum):
        bounds = _range(minimum, maximum, above)
        raise RequestError(f"{param} must be {bounds}, not {describe(number)}", param=param)
    return number


def read_text(value: Any, param: str, max_characters: int) -> str:
    """Text of at least one and at most `max_characters` characters."""
    if not isinstance(value, str):
        raise RequestError(f"{param} must be text, not {describe(value)}", param=param)
    if not value:
        raise RequestError(f"{param} must not be empty", param=param)
    if len(value) > max_characters:
        raise too_many(param, "characters", len(value), max_characters)
    return clean_text(value)


def read_texts(value: Any, param: str, max_items: int, max_characters: int) -> list[str]:
    """A text or a list of them, none empty."""
    items = [value] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise RequestError(f"{param} must be text or a list of texts, not {describe(value)}", param=param)
    if len(items) > max_items:
        raise too_many(param, "items", len(items), max_items)
    return [read_text(item, param, max_characters) for item in items]


def read_token_ids(value: Any, param: str, max_items: int, maximum: int) -> list[int]:
    """A token id or a list of them, each from 0 to `maximum`."""
    items = value if isinstance(value, list | tuple) else [value]
    if len(items) > max_items:
        raise too_many(param, "items", len(items), max_items)
    return [read_int(item, param, 0, maximum) for item in items]


def read_object(value: Any, param: str) -> dict[str, Any]:
    """A JSON object, deeply copied."""
    if not isinstance(value, Mapping):
        raise RequestError(f"{param} must be an object, not {describe(value)}", param=param)
    copy: dict[str, Any] = copy_json(value, param)
    return copy


def copy_json(value: Any, param: str, max_depth: int = MAX_JSON_DEPTH) -> Any:
    """A deep copy of plain JSON, with lone surrogates as U+FFFD.

    Raises RequestError where `value` nests objects and lists deeper than `max_depth` (so the recursion here
    and in every JSON writer behind it is bounded) or holds what JSON cannot: NaN, infinity, huge integers,
    other types.
    """
    if isinstance(value, str):
        return clean_text(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        if value.bit_length() > MAX_INTEGER_BITS:
            raise RequestError(f"{param} holds a number that is too large", param=param)
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise RequestError(f"{param} holds a number that is not finite", param=param)
        return value
    if not isinstance(value, Mapping | list | tuple):
        raise RequestError(f"{param} holds {describe(value)}, which is not JSON", param=param)
    if max_depth <= 0:
        raise RequestError(f"{param} is nested too deeply", param=param)
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise RequestError(f"{param} holds a key that is not text", param=param)
        return {clean_text(key): copy_json(item, param, max_depth - 1) for key, item in value.items()}
    if set(map(type, value)) == {int} and max(value) <= MAX_INTEGER and min(value) >= 0:
        return list(value)  # token ids: there can be a hundred thousand of them
    return [copy_json(item, param, max_depth - 1) for item in value]


def measure(value: Any, enough: int) -> tuple[int, int]:
    """How many values JSON data holds (a list of whole numbers is one), and how many characters and numbers.

    It stops counting values at `enough`, so that no input can make it slow.
    """
    values = size = 0
    left = [value]
    while left and values < enough:
        item = left.pop()
        values += 1
        if isinstance(item, str):
            size += len(item)
        elif isinstance(item, Mapping):
            size += sum(len(key) for key in item if isinstance(key, str))
            left.extend(item.values())
        elif isinstance(item, list | tuple):
            size += len(item)
            if set(map(type, item)) != {int}:
                left.extend(item)
    return values, size


def unknown_field(name: Any, known: Collection[str], where: str) -> RequestError:
    """The error for a field that nobody knows, with the name it was probably meant to be."""
    text = name if isinstance(name, str) else str(type(name).__name__)
    meant = MEANT.get(text)
    if meant is None and len(text) <= _COMPARED_CHARACTERS:
        meant = next(iter(difflib.get_close_matches(text, known, n=1)), None)
    hint = f"; did you mean {meant}?" if meant else ""
    shown = describe(text)
    return RequestError(
        f"unknown field {shown} in {where}{hint}", param=clean_text(text[:_COMPARED_CHARACTERS])
    )


def too_many(param: str, what: str, count: int, limit: int) -> RequestError:
    """The error for a list or text beyond its limit."""
    return RequestError(f"{param} has {count} {what}; the limit is {limit}", param=param)


def label(name: str) -> str:
    """A field's name for a message: as it is where it can be one, else in quotes, short and on one line."""
    return (
        name if name.isascii() and name.isprintable() and len(name) <= _SHOWN_CHARACTERS else describe(name)
    )


def describe(value: Any) -> str:
    """What the caller sent, short enough for a message: scalars as JSON, the rest by kind."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return "a list"
    if value is None or isinstance(value, bool | float):
        return json.dumps(value)
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "a huge number"
    if isinstance(value, str):
        # ASCII escapes keep the message in one line whatever the text holds.
        cut = value if len(value) <= _SHOWN_CHARACTERS else value[:_SHOWN_CHARACTERS] + "…"
        return json.dumps(clean_text(cut))
    return f"a {type(value).__name__}"


def _int_of(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value.strip())
    return None


def _range(minimum: float, maximum: float, above: bool = False) -> str:
    low = "" if minimum <= -MAX_INTEGER else f"{'more than' if above else 'at least'} {minimum}"
    high = "" if maximum >= MAX_INTEGER else f"at most {maximum}"
    return " and ".join(part for part in (low, high) if part) or "a 64-bit number"
