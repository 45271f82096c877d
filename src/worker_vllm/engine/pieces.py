"""A native item that is larger than the platform takes in one chunk, as several that say the same."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

# A character takes up to six bytes as JSON (\u0000), and one that is outside the BMP counts as four.
_BYTES_PER_CHARACTER = 6
# Room for braces, usage, and the keys of each choice.
_FRAME_BYTES = 512
_LISTS = ("tokens", "logprobs")


def split(item: Mapping[str, Any], max_bytes: int) -> Iterator[dict[str, Any]]:
    """The item, or smaller ones of at most about `max_bytes` whose lists joined are the item's.

    Texts, log probabilities and prompt log probabilities are spread over the pieces in order; what ends an
    answer (`finish_reason`, …) is in the last one. A single log probability is never cut.
    """
    if len(_json(item)) <= max_bytes:
        yield dict(item)
        return
    choices = item["choices"]
    room = max(max_bytes - _FRAME_BYTES * (len(choices) + 1), _FRAME_BYTES)
    piece, used = _empty(item), 0
    for place, name, value in _units(item, max(1, room // _BYTES_PER_CHARACTER)):
        size = len(_json(value)) + 2
        if used and used + size > room:
            yield piece
            piece, used = _empty(item), 0
        target = piece if place is None else piece["choices"][place]
        target.setdefault(name, []).append(value)
        used += size
    for choice, whole in zip(piece["choices"], choices, strict=True):
        choice.update({key: value for key, value in whole.items() if key not in _LISTS})
    yield piece


def _empty(item: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in item.items() if key not in ("choices", "prompt_logprobs")}
    return {**kept, "choices": [{"tokens": []} for _ in item["choices"]]}


def _units(item: Mapping[str, Any], max_characters: int) -> Iterator[tuple[int | None, str, Any]]:
    """What can be moved to another piece: its choice's index (None for the item), its list, its value."""
    for position in item.get("prompt_logprobs", ()):
        yield None, "prompt_logprobs", position
    for index, choice in enumerate(item["choices"]):
        for text in choice["tokens"]:
            for start in range(0, len(text), max_characters):
                yield index, "tokens", text[start : start + max_characters]
        for position in choice.get("logprobs", ()):
            yield index, "logprobs", position


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
