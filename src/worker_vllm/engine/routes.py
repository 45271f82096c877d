"""Which of vLLM's routes a job may reach, and what the worker must know about each.

Jobs come from whoever holds the endpoint's key. Inference is open to them; what changes or inspects the
server itself is the operator's, who opens it with WORKER_ROUTES.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from worker_vllm.errors import RouteForbiddenError, RouteNotFoundError


@dataclass(frozen=True)
class Route:
    """A route of vLLM's app that a job may call.

    Attributes:
        path: as the app declares it, parameters in braces.
        method: to call it with.
        takes_model: whether its body names a model, so that a missing one can be filled in.
        id_field: the body's field for a request id, where the X-Request-Id header is not read.
        chunks: whether its streams are OpenAI chunks, which RAW_OPENAI_OUTPUT=0 turns into objects.
    """

    path: str
    method: str
    takes_model: bool = False
    id_field: str | None = None
    chunks: bool = False


_GENERATING = (
    "/v1/chat/completions",
    "/v1/chat/completions/batch",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/cohere/v2/chat",
    "/generative_scoring",
    "/inference/v1/generate",
    "/v1/decisions",
    "/v1/systemone",
)
_POOLING = (
    "/v1/embeddings",
    "/v2/embed",
    "/pooling",
    "/classify",
    "/score",
    "/v1/score",
    "/rerank",
    "/v1/rerank",
    "/v2/rerank",
)
_HELPING = (  # text to tokens and back, without generating
    "/tokenize",
    "/detokenize",
    "/v1/chat/completions/render",
    "/v1/chat/completions/derender",
    "/v1/completions/render",
    "/v1/completions/derender",
    "/v1/messages/render",
    "/v1/responses/render",
    "/cohere/v2/chat/render",
)
_SPEAKING = ("/v1/audio/transcriptions", "/v1/audio/translations")
_READING = (  # tells about the server, changes nothing
    "/v1/models",
    "/v1/responses/{response_id}",
    "/health",
    "/ping",
    "/version",
    "/load",
    "/metrics",
)
_DISPATCHING = ("/v1/responses/{response_id}/cancel", "/invocations")

INFERENCE_ROUTES = frozenset((*_GENERATING, *_POOLING, *_HELPING, *_SPEAKING, *_READING, *_DISPATCHING))
"""The routes that jobs may reach unless the operator says otherwise."""

_WITH_MODEL = frozenset((*_GENERATING, *_POOLING, *_HELPING, *_SPEAKING))
_WITH_CHUNKS = frozenset(("/v1/chat/completions", "/v1/completions"))
_ID_FIELDS = {"/v1/responses": "request_id"}

OPERATOR_ROUTES = {
    "/v1/load_lora_adapter": "loads any adapter, from any path",
    "/v1/unload_lora_adapter": "takes an adapter from other callers",
    "/reset_prefix_cache": "slows every other job",
    "/reset_mm_cache": "slows every other job",
    "/reset_encoder_cache": "slows every other job",
    "/sleep": "stops the engine",
    "/wake_up": "starts it again",
    "/is_sleeping": "belongs to these two",
    "/pause": "stops generation for every job",
    "/resume": "starts it again",
    "/is_paused": "belongs to these two",
    "/start_profile": "slows every job and writes files",
    "/stop_profile": "belongs to it",
    "/collective_rpc": "runs any method of the engine's workers",
    "/server_info": "shows the configuration and environment",
    "/inference/v1/abort_requests": "ends other callers' jobs",
    "/abort_requests": "ends other callers' jobs",
    "/scale_elastic_ep": "changes the number of engines",
    "/is_scaling_elastic_ep": "belongs to it",
    "/update_weights": "replaces the model",
    "/init_weight_transfer_engine": "replaces the model",
    "/release_kv_cache_memory": "stops the engine",
    "/fault_tolerance/apply": "changes the engine",
    "/openapi.json": "describes all routes, the operator's too",
}
"""Routes that stay shut, with the reason. Any other that is not among the inference routes stays shut too."""


class Routes:
    """The routes of one app, as a job may see them.

    Args:
        app: vLLM's FastAPI app.
        tasks: the model's tasks, for the message about a missing route.
        setting: "inference", "all", or a comma list of further routes, as the app declares them.
    """

    def __init__(self, app: Any, tasks: Sequence[str], setting: str) -> None:
        self._routes = app.router.routes
        # most jobs name the same few routes, and an app has fifty to look through
        self._match = lru_cache(maxsize=256)(self._match_any)
        self._tasks = ", ".join(tasks)
        words = [word.strip() for word in setting.split(",") if word.strip()]
        self._all_open = "all" in words
        self._opened = INFERENCE_ROUTES | {_normal(word) for word in words if word != "inference"}

    def find(self, method: str, path: str) -> Route:
        """The route for a job's method and path (without a query).

        A job without a body says GET even where its caller sent an empty POST, since no method travels with
        an OpenAI request: a route that knows only POST is then called with POST.

        Raises:
            RouteForbiddenError: the operator has not opened it.
            RouteNotFoundError: there is none, for this model.
        """
        path = _normal(path)
        found = self._match(method, path)
        declared = found[0] if found is not None else path
        if not self._all_open and declared not in self._opened and (found or declared in OPERATOR_ROUTES):
            reason = OPERATOR_ROUTES.get(declared)
            raise RouteForbiddenError(
                f"{path} is closed to jobs{f' ({reason})' if reason else ''}; "
                "the endpoint's operator can open it with WORKER_ROUTES"
            )
        if found is None:
            raise RouteNotFoundError(f"there is no route {path} for this model (its tasks: {self._tasks})")
        return Route(
            path=declared,
            method=found[1],
            takes_model=declared in _WITH_MODEL,
            id_field=_ID_FIELDS.get(declared),
            chunks=declared in _WITH_CHUNKS,
        )

    def _match_any(self, method: str, path: str) -> tuple[str, str] | None:
        """The matching route's declared path and the method to call it with."""
        # Starlette is imported by then: it is in the app.
        from starlette.routing import Match

        scope = {"type": "http", "method": method, "path": path, "root_path": "", "headers": []}
        partial = None
        for route in self._routes:
            match, _ = route.matches(dict(scope))
            if match is Match.FULL:
                return route.path, method
            if match is Match.PARTIAL and partial is None:
                partial = route
        if partial is None:
            return None
        only_post = method == "GET" and "POST" in partial.methods and "GET" not in partial.methods
        # otherwise the app itself says, in its own words, that the method is not allowed
        return partial.path, "POST" if only_post else method


def _normal(path: str) -> str:
    return "/" + path.strip("/")
