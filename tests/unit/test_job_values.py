from __future__ import annotations

import json
from typing import Any

import pytest

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import MAX_INTEGER, MAX_JSON_DEPTH
from worker_vllm.job_values import (
    copy_json,
    describe,
    read_bool,
    read_float,
    read_int,
    read_object,
    read_text,
    read_texts,
    read_token_ids,
    unknown_field,
)


def refusal(function: Any, *arguments: Any, **named: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        function(*arguments, **named)
    assert caught.value.code == 400
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300
    return caught.value


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "meaning"),
    [(True, True), (False, False), ("true", True), ("FALSE", False), (" True ", True), ("False", False)],
)
def test_booleans_are_true_false_or_those_words(value: Any, meaning: bool) -> None:
    assert read_bool(value, "stream") is meaning


@pytest.mark.parametrize("value", [1, 0, 1.0, "yes", "1", "", "truee", [], {}, None, "true" * 1000])
def test_anything_else_is_no_boolean(value: Any) -> None:
    """user-problems 18: "false" as text was taken as true."""
    assert refusal(read_bool, value, "stream").param == "stream"


@pytest.mark.parametrize(
    ("value", "number"), [(12, 12), ("12", 12), (" 12 ", 12), ("-1", -1), ("+3", 3), (12.0, 12), ("007", 7)]
)
def test_whole_numbers_may_be_text(value: Any, number: int) -> None:
    result = read_int(value, "n")
    assert result == number
    assert type(result) is int


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        1.5,
        "1.5",
        "12.0",
        "1_000",
        "",
        "x",
        "١٢",
        "9" * 30,
        [],
        {},
        None,
        float("nan"),
        float("inf"),
        1e300,
        10**400,
    ],
)
def test_anything_else_is_no_whole_number(value: Any) -> None:
    assert refusal(read_int, value, "n").param == "n"


def test_whole_numbers_have_bounds_and_say_so() -> None:
    assert read_int(1, "n", 1, 5) == 1
    assert read_int(5, "n", 1, 5) == 5
    assert refusal(read_int, 6, "n", 1, 5).message == "n must be at least 1 and at most 5, not 6"
    assert refusal(read_int, 0, "n", 1).message == "n must be at least 1, not 0"
    assert refusal(read_int, MAX_INTEGER + 1, "seed").param == "seed"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (0.5, 0.5),
        ("0.5", 0.5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-2", -2.0),
        ("1e-3", 0.001),
        (" 1 ", 1.0),
    ],
)
def test_numbers_may_be_text(value: Any, number: float) -> None:
    result = read_float(value, "top_p")
    assert result == number
    assert type(result) is float


@pytest.mark.parametrize(
    "value",
    [
        True,
        "nan",
        "inf",
        "-Infinity",
        "1_0",
        "",
        ".",
        "x",
        [],
        {},
        None,
        float("nan"),
        float("-inf"),
        10**400,
        "1e999",
        "1" * 100_000,
    ],
)
def test_anything_else_is_no_number(value: Any) -> None:
    assert refusal(read_float, value, "top_p").param == "top_p"


def test_a_number_may_have_to_exceed_its_lower_bound() -> None:
    assert read_float(0, "min_p", 0, 1) == 0
    assert (
        refusal(read_float, 0, "top_p", 0, 1, above=True).message
        == "top_p must be more than 0 and at most 1, not 0.0"
    )
    assert refusal(read_float, 3, "top_p", 0, 1).param == "top_p"


def test_text_has_a_length_and_is_valid_unicode() -> None:
    assert read_text("a\ud83d", "model", 5) == "a\ufffd"
    assert "limit is 5" in refusal(read_text, "a" * 6, "model", 5).message
    assert "empty" in refusal(read_text, "", "model", 5).message
    refusal(read_text, 5, "model", 5)


def test_texts_may_be_one_text() -> None:
    assert read_texts("a", "stop", 2, 5) == ["a"]
    assert read_texts(["a", "b"], "stop", 2, 5) == ["a", "b"]
    assert read_texts([], "stop", 2, 5) == []
    for value in (["a", "b", "c"], ["a", ""], ["a", 1], ["abcdef"], 5, {"a": 1}):
        assert refusal(read_texts, value, "stop", 2, 5).param == "stop"


def test_token_ids_may_be_one_id_or_text() -> None:
    assert read_token_ids(5, "stop_token_ids", 2, 100) == [5]
    assert read_token_ids(["5", 6], "stop_token_ids", 2, 100) == [5, 6]
    for value in ([1, 2, 3], [-1], [101], [True], [[1]], "x", None):
        assert refusal(read_token_ids, value, "stop_token_ids", 2, 100).param == "stop_token_ids"


def test_a_copy_shares_nothing_with_its_original() -> None:
    original = {"a": [{"b": [1, 2]}], "ids": [1, 2, 3]}
    copy = read_object(original, "body")
    assert copy == original
    copy["a"][0]["b"].append(3)
    copy["ids"].append(4)
    assert original == {"a": [{"b": [1, 2]}], "ids": [1, 2, 3]}


def test_a_copy_has_valid_text_everywhere() -> None:
    assert copy_json({"\ud800": ["\ud83d\ude00", "\ude00"]}, "body") == {"\ufffd": ["😀", "\ufffd"]}


@pytest.mark.parametrize(
    "value",
    [float("nan"), [float("inf")], {"a": {1: 2}}, b"x", [object()], {"a": {1, 2}}, 10**400, [10**400, 1]],
)
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    assert refusal(copy_json, value, "body").param == "body"


def test_tuples_become_lists() -> None:
    assert copy_json((1, ("a",)), "body") == [1, ["a"]]


def test_nesting_has_a_limit_far_below_pythons_own() -> None:
    assert copy_json(nested(MAX_JSON_DEPTH), "body") == nested(MAX_JSON_DEPTH)
    assert "too deeply" in refusal(copy_json, nested(MAX_JSON_DEPTH + 1), "body").message
    refusal(copy_json, nested(100_000), "body")
    circular: list[Any] = []
    circular.append(circular)
    refusal(copy_json, circular, "body")


def test_an_object_is_asked_for_by_name() -> None:
    for value in ([], "x", 5, True):
        assert refusal(read_object, value, "sampling_params").param == "sampling_params"


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("temprature", "did you mean temperature?"),
        ("max_new_tokens", "did you mean max_tokens?"),
        ("completely_else", None),
    ],
)
def test_an_unknown_field_is_named_with_the_nearest_known_one(name: str, hint: str | None) -> None:
    error = unknown_field(name, ["temperature", "top_p", "max_tokens"], "input")
    assert error.param == name
    assert f'"{name}"' in error.message
    assert ("did you mean" in error.message) == (hint is not None)
    assert hint is None or hint in error.message


def test_an_unknown_field_with_a_huge_name_is_cheap_and_short() -> None:
    error = unknown_field("x" * 1_000_000, ["temperature"], "input")
    assert len(error.message) < 200
    assert len(error.param or "") < 100


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({}, "an object"),
        ([], "a list"),
        (None, "null"),
        (True, "true"),
        (5, "5"),
        (10**50, "a huge number"),
        ("a\nb", '"a\\nb"'),
        ("x" * 100, json.dumps("x" * 40 + "…")),
        (b"x", "a bytes"),
    ],
)
def test_values_are_described_in_one_short_line(value: Any, text: str) -> None:
    assert describe(value) == text
