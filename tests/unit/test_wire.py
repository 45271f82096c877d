from __future__ import annotations

import enum
import json
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_vllm.wire import MAX_OUTPUT_DEPTH, clean, clean_text

SURROGATES = st.text(alphabet=st.characters(exclude_categories=()))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | SURROGATES | st.binary(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(SURROGATES | st.integers() | st.binary(), inner)
        | st.tuples(inner, inner)
    ),
)


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("plain", "plain"),
        ("日本 🦀", "日本 🦀"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ude00", "😀"),
        ("\ud83d\ud83d\ude00", "\ufffd😀"),
        ("nul\x00", "nul\x00"),
    ],
)
def test_clean_text_replaces_lone_surrogates(text: str, cleaned: str) -> None:
    assert clean_text(text) == cleaned


def test_clean_text_without_surrogates_is_the_same_object() -> None:
    text = "日本" * 1000
    assert clean_text(text) is text


@pytest.mark.parametrize(
    ("value", "cleaned"),
    [
        ({"logprob": float("-inf"), "list": [float("nan"), 1.5]}, {"logprob": None, "list": [None, 1.5]}),
        (b"\xffbytes", "\ufffdbytes"),
        (bytearray(b"a"), "a"),
        (memoryview(b"a"), "a"),
        ((1, ("a",)), [1, ["a"]]),
        ({1: "int key", b"b": "bytes key", "\ud800": 1}, {"1": "int key", "b": "bytes key", "\ufffd": 1}),
        (Fraction(1, 2), 0.5),
        (Decimal("NaN"), "NaN"),
        (True, True),
        (MappingProxyType({"a": 1}), {"a": 1}),
    ],
)
def test_clean_makes_plain_json(value: Any, cleaned: Any) -> None:
    assert clean(value) == cleaned


def test_subclasses_become_their_plain_types() -> None:
    class Kind(enum.StrEnum):
        A = "a"

    class Count(enum.IntEnum):
        ONE = 1

    kind, count = clean([Kind.A, Count.ONE])
    assert type(kind) is str
    assert type(count) is int


def test_numbers_of_numpy_become_plain_ones() -> None:
    numpy = pytest.importorskip("numpy")
    assert clean([numpy.float32(0.5), numpy.int64(3), numpy.float32("nan")]) == [0.5, 3, None]


def test_nesting_beyond_the_limit_becomes_null() -> None:
    value: Any = "deep"
    for _ in range(100_000):
        value = [value]
    text = json.dumps(clean(value))
    assert text == "[" * MAX_OUTPUT_DEPTH + "null" + "]" * MAX_OUTPUT_DEPTH


def test_clean_does_not_change_its_input() -> None:
    value = {"a": [float("nan")]}
    clean(value)
    assert str(value) == "{'a': [nan]}"


@settings(deadline=None, database=None, max_examples=50)
@given(VALUES)
def test_whatever_comes_in_the_sdk_can_send(value: Any) -> None:
    json.dumps(clean(value), ensure_ascii=False, allow_nan=False).encode("utf-8")
