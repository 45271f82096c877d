from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from worker_vllm.errors import RequestError
from worker_vllm.routes import normalise_route, read_method


@pytest.mark.parametrize(
    ("route", "path"),
    [
        ("/v1/chat/completions", "/v1/chat/completions"),
        ("v1/models", "/v1/models"),
        (" /v1/models ", "/v1/models"),
        ("/v1/models/", "/v1/models"),
        ("/v1//models", "/v1/models"),
        ("/openai/v1/models", "/v1/models"),
        ("openai/v1/models", "/v1/models"),
        ("/openai/v2", "/openai/v2"),
        ("/v1/%6dodels", "/v1/models"),
        ("/v1/models/org%2Fname", "/v1/models/org/name"),
        ("/v1/models/日本", "/v1/models/日本"),
        ("/v1/models/a..b", "/v1/models/a..b"),
        ("/", "/"),
        ("metrics", "/metrics"),
    ],
)
def test_a_route_has_one_normal_form(route: str, path: str) -> None:
    """user-problems 23: a route without its leading slash broke the URL."""
    assert normalise_route(route, "route") == (path, "")


def test_the_query_is_split_off_and_kept() -> None:
    assert normalise_route("/v1/models?a=1&b=/../x?y", "route") == ("/v1/models", "a=1&b=/../x?y")


@pytest.mark.parametrize(
    "route",
    [
        "http://host/v1/models",
        "HTTPS://host",
        "file:///etc/passwd",
        "//host/v1/models",
        "/v1/../metrics",
        "..",
        "/v1/%2e%2e/metrics",
        "/v1/.%2E/metrics",
        "/v1/./models",
        "/v1/%252e%252e/metrics",
        "/v1\\..\\metrics",
        "/v1/%5c..",
        "/v1/models\nERROR forged",
        "/v1/models\r\nX: y",
        "/v1/models\x00",
        "/v1/%00",
        "/v1/%0a",
        "/v1/\u2028",
        "/v1/\u202e",
        "/v1/%ff",
        "/v1/models#x",
        "/v1/models?a#x",
        "/v1/%3Fa",
        "/v1/models?a=\n",
        "",
        "/" + "a" * 5000,
        5,
        None,
        [],
        {"a": 1},
        True,
    ],
)
def test_what_is_no_plain_path_is_refused(route: Any) -> None:
    with pytest.raises(RequestError) as caught:
        normalise_route(route, "route")
    assert caught.value.param == "route"
    assert "\n" not in caught.value.message


@settings(deadline=None, database=None)
@example("2 ?")
@given(st.text(alphabet="/.%25e?#\\:a\n~ 日\u2028\ud800"))
def test_whatever_passes_cannot_leave_its_place(route: str) -> None:
    try:
        path, query = normalise_route(route, "route")
    except RequestError:
        return
    assert path.startswith("/") and "//" not in path
    assert not {".", ".."} & set(path.split("/"))
    assert not set("%?#\\\n\u2028\ud800") & set(path)
    assert "\n" not in query
    assert normalise_route(path, "route")[0] == path


@pytest.mark.parametrize(("method", "read"), [("get", "GET"), ("POST", "POST"), (" Delete ", "DELETE")])
def test_methods_are_put_in_capitals(method: str, read: str) -> None:
    assert read_method(method, "method") == read


@pytest.mark.parametrize("method", ["", "TRACE", "G ET", 5, None, []])
def test_other_methods_are_refused(method: Any) -> None:
    with pytest.raises(RequestError) as caught:
        read_method(method, "method")
    assert caught.value.param == "method"
