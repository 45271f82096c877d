"""Regular expressions that would stall the engine, by what xgrammar 0.2.8 needed for a token."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_vllm.regex_ways import is_ambiguous

BOMB = r"(\w{0,500}[^x]{0,500}){0,50}"
STALLING = [
    r"(\w+\s?)+",
    r"(\w+ ?)+",
    r"([A-Za-z]+ ?)*",
    r"(\w+ ?){1,20}",
    BOMB,
    BOMB * 20,
    r"(\w{1,20} ?){1,20}",
    r"(.{1,40} ?){1,40}",
    r"(.{0,10}){0,10}",
    r"(.|..){0,1000}",
    r"((.+)+)+",
    r"(((((.+)+)+)+)+)+",
    r"(.*.*.*)*" * 50,
    r"(\w*[^x]*)*" * 20,
    r"\w{0,500}[^x]{0,500}" * 4,
    r".{0,99}.{0,99}.{0,99}",
    "(" * 20 + ".+" + ")+" * 20,
    r"((ab){1,20}c?){1,20}",
    r"(?:(?P<x>\w{1,20}) ?){1,20}",
    "(" * 400 + "a" + ")" * 400,
]
HARMLESS = [
    r"\w{1,20}( \w{1,20}){0,19}",
    r"\w+( \w+)*",
    r"(.+\n)+",
    r"(\d+,?)*",
    r"((\w+ )+\. )+",
    r".{0,100}.{0,100}",
    r"\w{1,50} \w{1,50}",
    r"(.{0,50}\n){0,20}",
    r"([^,]{1,100},){0,50}",
    r"(\d{1,3},?)+",
    r"[\w.+-]{1,64}@[\w-]{1,63}(\.[\w-]{1,63}){1,8}",
    r"\d{4}-\d{2}-\d{2}T\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?Z",
    r"(yes|no|maybe)",
    r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?",
    r"\p{Lu}\p{L}{0,30}",
    r"^[a-z]{2,10}(-[a-z]{2,10}){0,9}$",
    r"(25[0-5]|2[0-4]\d|1?\d?\d)(\.(25[0-5]|2[0-4]\d|1?\d?\d)){3}",
    r"\bfoo\b",
    "|".join(f"word{n}" for n in range(900)),
    r"[]a]+",
    r"[^]]*",
    r"\(\d{3}\) \d{3}-\d{4}",
    r".*foo.*bar.*",
]


@pytest.mark.parametrize("pattern", STALLING, ids=lambda pattern: pattern[:30])
def test_what_stalls_the_engine_is_known(pattern: str) -> None:
    assert is_ambiguous(pattern)


@pytest.mark.parametrize("pattern", HARMLESS, ids=lambda pattern: pattern[:30])
def test_what_people_write_is_let_pass(pattern: str) -> None:
    assert not is_ambiguous(pattern)


@given(st.text("ab.*+?()[]{}|\\^$1,-wdp", max_size=30) | st.text(max_size=20))
def test_any_text_is_judged(pattern: str) -> None:
    is_ambiguous(pattern)


@pytest.mark.parametrize(
    "pattern", ["a?" * 4000, "(a|b)*" * 1300, "(" * 4000, "[a-z]{1,9}" * 800, "a" * 8192]
)
def test_it_takes_no_time_to_tell(pattern: str) -> None:
    begun = time.perf_counter()
    is_ambiguous(pattern)
    assert time.perf_counter() - begun < 2.0
