"""What may go onto the wire: values that any JSON writer and reader takes.

The SDK writes results as JSON without looking at them: a lone surrogate raises there and no result is ever
sent, NaN becomes text that is not JSON, bytes are dropped in silence (runpod 1.10 and 1.12).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

MAX_OUTPUT_DEPTH = 256
"""Nesting beyond this becomes null: the JSON writer recurses, and an error there would lose the whole
result."""


def clean(value: Any) -> Any:
    """A copy of `value` that is plain JSON: text is valid Unicode, no NaN or infinity (null), bytes are text.

    Numbers of other libraries become plain ones, tuples and sets lists, unknown objects their `str`.
    """
    return clean_text(value) if type(value) is str else _clean(value, MAX_OUTPUT_DEPTH)


def clean_text(text: str) -> str:
    """`text` with surrogate pairs joined and lone surrogates as U+FFFD; the same object where it has none."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _clean(value: Any, depth: int) -> Any:
    if isinstance(value, str):
        return clean_text(str(value))
    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value).decode("utf-8", "replace")
    if depth == 0:
        return None
    if isinstance(value, Mapping):
        return {_clean_key(key): _clean(item, depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item, depth - 1) for item in value]
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return _clean(float(value), depth)
    return clean_text(str(value))


def _clean_key(key: Any) -> str:
    if isinstance(key, str):
        return clean_text(str(key))
    if isinstance(key, bytes | bytearray):
        return bytes(key).decode("utf-8", "replace")
    return clean_text(str(key))
