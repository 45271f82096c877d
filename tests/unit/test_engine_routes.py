from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.routing import Mount, Route

from worker_vllm.engine.routes import INFERENCE_ROUTES, OPERATOR_ROUTES, Routes
from worker_vllm.errors import RouteForbiddenError, RouteNotFoundError


def app() -> Any:
    async def nothing(request: Any) -> None: ...

    def route(path: str, *methods: str) -> Route:
        return Route(path, nothing, methods=list(methods))

    metrics = Mount("/metrics", app=lambda scope, receive, send: None)
    metrics.path_regex = re.compile("^/metrics(?P<path>.*)$")  # as vLLM does, against a redirect

    return Starlette(
        routes=[
            route("/v1/models", "GET"),
            route("/v1/chat/completions", "POST"),
            route("/v1/responses", "POST"),
            route("/v1/responses/{response_id}", "GET"),
            route("/v1/responses/{response_id}/cancel", "POST"),
            route("/ping", "GET"),
            route("/ping", "POST"),
            route("/v1/load_lora_adapter", "POST"),
            route("/plugin", "POST"),
            metrics,
        ]
    )


def find(method: str, path: str, setting: str = "inference") -> Any:
    return Routes(app(), ("generate",), setting).find(method, path)


def test_an_inference_route_is_open() -> None:
    route = find("POST", "/v1/chat/completions")
    assert (route.path, route.method, route.takes_model, route.chunks) == (
        "/v1/chat/completions",
        "POST",
        True,
        True,
    )


def test_a_parameter_in_the_path_is_matched() -> None:
    assert find("GET", "/v1/responses/resp_1").path == "/v1/responses/{response_id}"


def test_an_empty_post_that_arrives_as_get_is_a_post_again() -> None:
    assert find("GET", "/v1/responses/resp_1/cancel").method == "POST"
    assert find("GET", "/v1/chat/completions").method == "POST"


def test_a_route_with_both_methods_keeps_the_jobs() -> None:
    assert find("GET", "/ping").method == "GET"
    assert find("POST", "/ping").method == "POST"


def test_a_wrong_method_is_left_to_the_app() -> None:
    assert find("POST", "/v1/models").method == "POST"


def test_a_mounted_app_is_found() -> None:
    assert find("GET", "/metrics").path == "/metrics"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/nothing", "/"])
def test_a_missing_route_names_the_models_tasks(path: str) -> None:
    with pytest.raises(RouteNotFoundError, match="generate") as caught:
        find("POST", path)
    assert caught.value.code == 404


@pytest.mark.parametrize("path", ["/v1/load_lora_adapter", "/plugin", "/sleep"])
def test_other_routes_are_closed(path: str) -> None:
    with pytest.raises(RouteForbiddenError, match="WORKER_ROUTES") as caught:
        find("POST", path)
    assert caught.value.code == 403


@pytest.mark.parametrize("setting", ["all", "inference,/plugin", "/plugin", " /plugin/ , /sleep"])
def test_the_operator_opens_routes(setting: str) -> None:
    assert find("POST", "/plugin", setting).path == "/plugin"
    assert find("GET", "/v1/models", setting).path == "/v1/models"


def test_an_opened_route_that_the_app_lacks_is_missing() -> None:
    with pytest.raises(RouteNotFoundError):
        find("POST", "/sleep", "/sleep")


def test_only_named_bodies_take_a_model() -> None:
    assert not find("POST", "/plugin", "all").takes_model
    assert not find("GET", "/v1/responses/resp_1").takes_model


def test_no_route_is_on_both_lists() -> None:
    assert not INFERENCE_ROUTES & set(OPERATOR_ROUTES)
