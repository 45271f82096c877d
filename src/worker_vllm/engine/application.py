"""vLLM's own app, called in-process: one request, its answer decoded, its errors as ours."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from pydantic import ValidationError

from worker_vllm import asgi
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.errors import ApplicationError, EngineDeadError, InternalError, WorkerError
from worker_vllm.vllm_errors import translate

EVENT_STREAM = "text/event-stream"
# A job's id is the platform's, but a test's or another platform's may hold anything.
_NOT_IN_HEADERS = re.compile(r"[^\x21-\x7e]")
# Characters or items in a body's fields from which it is written beside the event loop.
_LARGE = 10_000
_TEXT_TYPES = ("text/", "application/xml", "application/yaml", "application/x-ndjson")


@asynccontextmanager
async def open_answer(
    host: EngineHost,
    *,
    method: str,
    path: str,
    query: str,
    body: Mapping[str, Any] | None,
    request_id: str,
) -> AsyncIterator[asgi.Response]:
    """Send a request to vLLM's app; leaving the context disconnects, which ends what still runs.

    Args:
        request_id: vLLM makes its own request ids of it.

    Raises:
        ApplicationError: the app refused: its own error object.
        EngineDeadError: the engine died meanwhile.
        InternalError: the app failed without an answer.
    """
    headers = {"accept": "*/*", "x-request-id": _NOT_IN_HEADERS.sub("_", request_id)}
    content = b""
    if body is not None:
        headers["content-type"] = "application/json"
        large = sum(map(len, filter(_has_length, body.values()))) > _LARGE
        content = await asyncio.to_thread(_encoded, body) if large else _encoded(body)
    try:
        async with asgi.open_response(
            host.app,
            method=method,
            path=path,
            query=query,
            headers=headers,
            body=content,
        ) as response:
            if response.status >= 400:
                raise _refusal(response.status, decode(response.headers, await response.read()))
            yield response
    except InternalError as error:
        raise cause_of(error) from error
    except ApplicationError as error:
        if host.errored:
            raise EngineDeadError("the engine died; this worker is leaving service") from error
        raise


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body).encode()


def _has_length(value: Any) -> bool:
    return isinstance(value, str | list | dict)


async def ask(host: EngineHost, *, path: str, body: Mapping[str, Any], request_id: str) -> Any:
    """POST `body` and return the decoded answer. Raises what `open_answer` raises."""
    async with open_answer(
        host, method="POST", path=path, query="", body=body, request_id=request_id
    ) as response:
        return decode(response.headers, await response.read())


def cause_of(error: WorkerError) -> WorkerError:
    """What an app's failure means: the first exception in its chain of causes that says more than "failed".

    Starlette wraps what a handler raises after the answer has begun, so the news may be a few steps down. A
    pydantic error is no news: the request has been read by then, so it is vLLM's own answer that is at fault
    (0.32 fails in this way to write the error event of a response).
    """
    cause: BaseException | None = error.__cause__
    while cause is not None:
        if not isinstance(cause, ValidationError):
            meaning = translate(cause)
            if not isinstance(meaning, InternalError):
                return meaning
        cause = cause.__cause__ or cause.__context__
    return error


def decode(headers: Mapping[str, str], content: bytes) -> Any:
    """An answer's body as JSON-ready data, by its content type.

    JSON as what it holds, text as text, anything else as `{"data_b64", "content_type", "size_bytes"}`. An
    empty body, which /health and others send, says `{"status": "ok"}`: the platform drops empty outputs.
    """
    if not content:
        return {"status": "ok"}
    content_type = headers.get("content-type", "")
    kind = content_type.split(";")[0].strip().lower()
    if kind == "application/json" or kind.endswith("+json"):
        return json.loads(content)
    if kind.startswith(_TEXT_TYPES):
        return content.decode("utf-8", "replace")
    return {
        "data_b64": base64.b64encode(content).decode("ascii"),
        "content_type": content_type,
        "size_bytes": len(content),
    }


def _refusal(status: int, body: Any) -> ApplicationError:
    """An error body of vLLM's, of Anthropic's shape, or of FastAPI's own `{"detail": …}`."""
    error: Any = body.get("error") if isinstance(body, dict) else body
    if not isinstance(error, Mapping):
        detail = error or body.get("detail") or body.get("message")
        error = {"message": detail if isinstance(detail, str) else None}
    # What this model cannot do is no fault of the server's, though vLLM says 501.
    return ApplicationError(400 if status == 501 else status, error, body)
