from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_vllm import values

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)
READERS = (
    values.read_bool,
    values.read_int,
    lambda raw: values.read_int(raw, suffixes=True, auto=True),
    values.read_float,
    values.read_json,
    values.read_mapping,
    values.read_list,
)


@pytest.mark.parametrize("text", ["", "  ", "None", "none", "NULL", "null", None])
def test_nothing_blanks_and_the_words_none_and_null_are_unset(text: str | None) -> None:
    assert values.is_unset(text)


@pytest.mark.parametrize("text", ["0", "false", "[]", "nil", "auto", False, 0, [], {}])
def test_zero_false_and_empty_collections_are_set(text: object) -> None:
    assert not values.is_unset(text)


@pytest.mark.parametrize("text", ["true", "True", "TRUE", "1", "yes", "on", " on ", True])
def test_words_for_true(text: object) -> None:
    assert values.read_bool(text) is True


@pytest.mark.parametrize("text", ["false", "False", "0", "no", "off", "OFF", False])
def test_words_for_false(text: object) -> None:
    assert values.read_bool(text) is False


@pytest.mark.parametrize("text", ["2", "t", "enabled", "", "truee", 1.5])
def test_other_words_are_no_boolean(text: object) -> None:
    with pytest.raises(ValueError, match="true or false"):
        values.read_bool(text)


@pytest.mark.parametrize(
    ("text", "number"), [("8", 8), (" 8 ", 8), ("8.0", 8), ("-1", -1), ("+3", 3), (7, 7), ("0", 0), (4.0, 4)]
)
def test_whole_numbers(text: object, number: int) -> None:
    assert values.read_int(text) == number


@pytest.mark.parametrize("text", ["8.5", "eight", "", "1e3", "8k", "auto", True, "9" * 5000, "٣٣x", "nan"])
def test_no_whole_numbers(text: object) -> None:
    with pytest.raises(ValueError, match="whole number"):
        values.read_int(text)


@pytest.mark.parametrize(
    ("text", "number"), [("8k", 8000), ("8K", 8192), ("25.6k", 25600), ("1M", 1 << 20), ("2g", 2 * 10**9)]
)
def test_sizes_are_decimal_in_small_letters_and_binary_in_capitals(text: str, number: int) -> None:
    assert values.read_int(text, suffixes=True) == number


def test_a_fraction_of_a_binary_size_names_the_decimal_one() -> None:
    with pytest.raises(ValueError, match=r"did you mean 1\.5k"):
        values.read_int("1.5K", suffixes=True)


def test_auto_is_minus_one_where_it_is_understood() -> None:
    assert values.read_int("Auto", auto=True) == -1


@pytest.mark.parametrize("text", ["nan", "inf", "-inf", "1e999"])
def test_numbers_are_finite(text: str) -> None:
    with pytest.raises(ValueError, match="finite"):
        values.read_float(text)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ('{"a": true}', {"a": True}),
        ("{'a': True, 'b': None}", {"a": True, "b": None}),
        ("[1, 2]", [1, 2]),
        ("(1, 2)", [1, 2]),
        ('{"bytes": 80m}', {"bytes": 80_000_000}),
        ('{"name": "80m"}', {"name": "80m"}),
    ],
)
def test_json_python_literals_and_short_sizes(text: str, content: Any) -> None:
    assert values.read_json(text) == content


@pytest.mark.parametrize("text", ["{a: 1}", "{", "NaN", "__import__('os')", "[" * 100_000])
def test_what_is_neither_json_nor_a_literal_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected JSON"):
        values.read_json(text)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("image=1,video=0", {"image": 1, "video": 0}),
        ("a=1.5, b = true ,c=None,d=text", {"a": 1.5, "b": True, "c": None, "d": "text"}),
        ('{"image": 1}', {"image": 1}),
        ("a=b=c", {"a": "b=c"}),
    ],
)
def test_objects_as_json_or_as_words(text: str, content: dict[str, Any]) -> None:
    assert values.read_mapping(text) == content


@pytest.mark.parametrize("text", ["image", "image:1", "=1", "[1]", "1"])
def test_no_objects(text: str) -> None:
    with pytest.raises(ValueError, match="expected an object"):
        values.read_mapping(text)


@pytest.mark.parametrize(
    ("text", "items"),
    [
        ("a,b", ["a", "b"]),
        ('["a", "b"]', ["a", "b"]),
        ("['a']", ["a"]),
        (" a , ,b ", ["a", "b"]),
        (["a"], ["a"]),
    ],
)
def test_lists_by_comma_or_json(text: object, items: list[str]) -> None:
    assert values.read_list(text) == items


def test_a_value_is_shown_on_one_line_and_shortened() -> None:
    shown = values.shown("a\nb" + "c" * 200)
    assert "\n" not in shown
    assert len(shown) < 90
    assert shown.endswith("…'")


@given(ANYTHING, st.sampled_from(READERS))
def test_readers_raise_value_errors_alone(raw: object, read: Any) -> None:
    try:
        read(raw)
    except ValueError as error:
        assert str(error)


@given(st.text())
def test_scalars_raise_value_errors_alone(text: str) -> None:
    try:
        values.read_scalar(text)
    except ValueError as error:
        assert str(error)
