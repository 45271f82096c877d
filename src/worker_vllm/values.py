"""One parser per kind of value, for text from a web form, a shell or a YAML file.
 Every function raises ValueError with what it expected ("expected true or false"), and nothing else; the
caller adds the variable's name. Values that a YAML file already typed pass through.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import Any

TRUE_WORDS = frozenset({"true", "1", "yes", "on"})
FALSE_WORDS = frozenset({"false", "0", "no", "off"})
UNSET_WORDS = frozenset({"", "none", "null"})

_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)")
_WHOLE = re.compile(r"[+-]?\d+(\.0*)?")
_SIZED = re.compile(r"(\d+(?:\.\d+)?)([kKmMgGtT])")
_KEY = re.compile(r"[A-Za-z_][\w.-]*")

# longer numerals are no setting of anything, and Python refuses to convert them past 4300 digits
_MAX_DIGITS = 40


def is_unset(raw: object) -> bool:
    """Whether `raw` means "not given": nothing, blanks, or the words None and null, which forms send for
    it."""
    return raw is None or (isinstance(raw, str) and raw.strip().lower() in UNSET_WORDS)


def read_bool(raw: object) -> bool:
    """true/1/yes/on or false/0/no/off, in any case."""
    if isinstance(raw, bool):
        return raw
    word = str(raw).strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError("expected true or false")


def read_int(raw: object, *, suffixes: bool = False, auto: bool = False) -> int:
    """A whole number; "8.0" is one, because number fields of forms write it so.

    Args:
        suffixes: accept vLLM's sizes too: 8k is 8000, 8K is 8192, 25.6k is 25600.
        auto: accept the word auto too, which vLLM writes -1.
    """
    if isinstance(raw, bool):
        raise ValueError("expected a whole number")
    text = str(raw).strip()
    if auto and text.lower() == "auto":
        return -1
    if len(text) <= _MAX_DIGITS:
        if _WHOLE.fullmatch(text):
            return int(text.split(".")[0])
        if suffixes and (sized := _SIZED.fullmatch(text)):
            return _read_sized(*sized.groups())
    raise ValueError(
        f"expected a whole number{' such as 8192, 8k or 8K' if suffixes else ''}{' or auto' if auto else ''}"
    )


def _read_sized(number: str, suffix: str) -> int:
    if suffix in _DECIMAL:
        return int(float(number) * _DECIMAL[suffix])
    if "." in number:
        raise ValueError(f"expected a whole number before {suffix}; did you mean {number}{suffix.lower()}?")
    return int(number) * _BINARY[suffix]


def read_float(raw: object) -> float:
    """A finite number."""
    if isinstance(raw, bool):
        raise ValueError("expected a number")
    try:
        number = float(str(raw).strip())
    except ValueError:
        raise ValueError("expected a number") from None
    if not math.isfinite(number):
        raise ValueError("expected a finite number")
    return number


def read_json(raw: object) -> Any:
    """JSON, or the Python literal that people paste for it ({'a': True}); objects and lists pass through.

    Sizes in vLLM's short form are read outside of strings, as vLLM reads them: {"cpu_bytes_to_use": 80m}.
    """
    if not isinstance(raw, str):
        return raw
    for attempt in (raw, _expand_sizes(raw)):
        try:
            return json.loads(attempt, parse_constant=_refuse_constant)
        except (ValueError, RecursionError):
            continue
    try:
        literal = ast.literal_eval(raw.strip())
        return json.loads(json.dumps(literal, allow_nan=False))
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise ValueError("expected JSON") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


def _expand_sizes(text: str) -> str:
    parts = re.split(r'("(?:[^"\\]|\\.)*")', text)
    for index in range(0, len(parts), 2):
        parts[index] = re.sub(
            r"(?<![\w.])(\d{1,18}(?:\.\d{1,18})?)([kKmMgGtT])\b", _expand_size, parts[index]
        )
    return "".join(parts)


def _expand_size(match: re.Match[str]) -> str:
    try:
        return str(_read_sized(*match.groups()))
    except ValueError:
        return match.group()


def read_mapping(raw: object) -> dict[str, Any]:
    """An object: JSON, a Python literal, or words: k=v,k=v (the values read as numbers or booleans if they
    are)."""
    if isinstance(raw, str) and not raw.lstrip().startswith("{"):
        return _read_words(raw)
    value = read_json(raw)
    if not isinstance(value, dict):
        raise ValueError('expected an object: {"key": value} or key=value,key=value')
    return {str(key): item for key, item in value.items()}


def _read_words(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = word.partition("=")
        key = key.strip()
        if not equals or not _KEY.fullmatch(key):
            raise ValueError('expected an object: {"key": value} or key=value,key=value')
        found[key] = read_scalar(value)
    return found


def read_scalar(text: str) -> Any:
    """A number, boolean or null if the text is one, JSON if it opens like it, else the text itself."""
    word = text.strip()
    lowered = word.lower()
    if lowered in ("none", "null"):
        return None
    if lowered in ("true", "false"):
        return lowered == "true"
    if len(word) <= _MAX_DIGITS and _NUMBER.fullmatch(word):
        return int(word) if "." not in word else float(word)
    if word[:1] in "[{" and word:
        return read_json(word)
    return word


def read_list(raw: object) -> list[Any]:
    """A list: JSON (or a Python literal) in brackets, or items with commas between them."""
    if isinstance(raw, list | tuple | set | frozenset):
        return list(raw)
    text = str(raw).strip()
    if text.startswith("["):
        value = read_json(text)
        if not isinstance(value, list):
            raise ValueError('expected a list: ["a", "b"] or a,b')
        return value
    return [item.strip() for item in text.split(",") if item.strip()]


def shown(raw: object, limit: int = 80) -> str:
    """`raw` in quotes for a message on one line, shortened to `limit` characters."""
    text = json.dumps(raw, ensure_ascii=False, default=str) if not isinstance(raw, str) else raw
    text = "".join(character if character.isprintable() else "\ufffd" for character in text)
    return f"'{text}'" if len(text) <= limit else f"'{text[: limit - 1]}…'"
