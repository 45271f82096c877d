"""What can be said of a job's input before it is read."""

from __future__ import annotations

from typing import Any

import pytest

from worker_vllm.job_shape import asks_for_events, asks_for_route, is_large, known_field


@pytest.mark.parametrize(
    ("job_input", "large"),
    [
        ({"prompt": "a" * 200_000}, True),
        ({"prompt": [1] * 200_000}, True),
        ({"openai_input": {"messages": [{"content": ["a" * 60_000] * 2}]}}, True),
        ({"x": {str(number): "abcdefgh" for number in range(20_000)}}, True),
        ({"prompt": "a" * 50_000}, False),
        ("a", False),
        (None, False),
    ],
)
def test_a_large_input_is_known_without_reading_all_of_it(job_input: Any, large: bool) -> None:
    assert is_large(job_input) is large


def test_depth_does_not_matter() -> None:
    deep: Any = "x"
    for _ in range(200_000):
        deep = [deep]
    assert is_large(deep)


@pytest.mark.parametrize(
    ("job_input", "route", "events"),
    [
        ({"openai_input": {"stream": True}}, True, True),
        ({"route": "/v1/completions", "body": {"stream": "true"}}, True, True),
        ({"openai_route": "/v1/models"}, True, False),
        ({"openai_input": 5, "stream": True}, True, True),
        ({"prompt": "a", "stream": True}, False, False),
        ({"openai_input": {}, "prompt": "a"}, False, False),
        ([1], False, False),
    ],
)
def test_a_call_of_a_route_is_known_by_its_fields(job_input: Any, route: bool, events: bool) -> None:
    assert (asks_for_route(job_input), asks_for_events(job_input)) == (route, events)


@pytest.mark.parametrize(
    ("param", "known"),
    [("messages[0]", "messages"), ("structured_outputs.regex", "structured_outputs"), ("top_p", "top_p"),
     ("my secret", None), ("", None), (None, None)],
)  # fmt: skip
def test_the_log_names_fields_that_jobs_have_and_no_others(param: str | None, known: str | None) -> None:
    assert known_field(param) == known
