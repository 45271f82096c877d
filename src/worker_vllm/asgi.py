"""Call an ASGI app in this process, streamed both ways, with a real end when the caller leaves.

The declared ASGI spec_version is 2.4, with which Starlette streams in the request's own task. With 2.3 it
starts a group of two tasks for each stream, one to look for the disconnect, which costs a short job some 5 %
of its time. Nobody looks then, so whoever leaves cancels the app's task where it waits: in its own generator.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from worker_vllm.errors import OutputTooLargeError
from worker_vllm.exchange import MAX_UNREAD_CHUNKS, Exchange, Message

logger = logging.getLogger(__name__)

App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

SPEC_VERSION = "2.4"
GRACE_SECONDS = 1.0
"""How long an app that listens for the disconnect may take to end by itself, before its task is cancelled."""
CANCEL_SECONDS = 5.0
"""How long leaving then waits for the cancelled task."""
MAX_BODY_BYTES = 20_000_000
"""What `Response.read` takes unless told otherwise: the platform's own limit on a result (20 MB for
/runsync)."""

# Characters that a query or a path keeps as they are; everything else is percent-encoded on its way into the
# scope.
_QUERY_SAFE = "%/:?#[]@!$&'()*+,;=~"
_PATH_SAFE = "/:@!$&'()*+,;=~"

# The event loop itself keeps only weak references, and a task may outlive the wait for it.
_tasks: set[asyncio.Task[None]] = set()


class Response:
    """An app's answer: status and headers at once, the body as it is made.

    Iterate it for the body's chunks, in the pieces the app sent (empty ones left out), or call
    `read_available` until it is empty, or `read` once. All raise InternalError where the app fails before the
    body's end. It belongs to `open_response`, which closes it.

    Attributes:
        status: the HTTP status.
        headers: by lower-case name; a name sent several times holds the values joined by ", ".
    """

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self.status = exchange.status
        self.headers = exchange.headers

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await self._exchange.next_chunk()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def read_available(self, settled: Callable[[], bool] = lambda: True) -> bytes:
        """What has come and was not read yet; waits until there is something. Empty at the body's end.

        Args:
            settled: whether the app has handed over all that belongs together; while it has not, it gets a
                few turns of the loop.
        """
        return await self._exchange.all_chunks(settled)

    async def read(self, max_bytes: int = MAX_BODY_BYTES) -> bytes:
        """The whole body. Raises OutputTooLargeError as soon as it exceeds `max_bytes`."""
        parts = []
        total = 0
        async for chunk in self:
            total += len(chunk)
            if total > max_bytes:
                raise OutputTooLargeError(f"the response is larger than {max_bytes} bytes")
            parts.append(chunk)
        return b"".join(parts)


@asynccontextmanager
async def open_response(
    app: App,
    *,
    method: str,
    path: str,
    query: str = "",
    headers: Mapping[str, str],
    body: bytes,
    grace_seconds: float = GRACE_SECONDS,
    max_unread_chunks: int = MAX_UNREAD_CHUNKS,
) -> AsyncIterator[Response]:
    """Send one request to `app` and wait for its answer's start.

    Args:
        path: the decoded path, from the root, without a query.
        query: without its "?"; characters outside ASCII are percent-encoded here.
        headers: the request's; host and content-length are added.
        grace_seconds: how long an app that listens for the disconnect may run on after it. One that does not
            is cancelled at once, without what it would do behind its answer (Starlette's background tasks).
        max_unread_chunks: how many body chunks may wait unread before the app's `send` waits too.

    Raises:
        InternalError: the app raised, or ended, before it began to answer (its exception is the cause, and
            logged).

    Leaving the context, however, sends `http.disconnect`, and the app's task has ended by then or has been
    cancelled. The app runs in a task of its own, which sees the caller's context variables.
    """
    exchange = Exchange(body, max_unread_chunks)
    scope = _scope(method, path, query, headers, body)
    task = _keep(asyncio.create_task(_call(app, scope, exchange)))
    exchange.watch(task)
    try:
        await exchange.wait_for_start()
        yield Response(exchange)
    finally:
        grace = grace_seconds if exchange.disconnect() else 0
        if not task.done():
            # A task of its own: a caller that is cancelled here does not wait, and the app keeps its grace.
            await asyncio.shield(_keep(asyncio.create_task(_end(task, grace))))


async def _call(app: App, scope: MutableMapping[str, Any], exchange: Exchange) -> None:
    """The app's task. Its exception is logged here, once, and stays the task's own for the reader to find."""
    try:
        await app(scope, exchange.receive, exchange.send)
    except Exception:
        # After a disconnect the app may end as it likes, and after a complete answer the reader has what it
        # needs (Starlette raises again behind the 500 it has sent).
        level = logging.DEBUG if exchange.disconnected.is_set() else logging.ERROR
        logger.log(level, "the app raised on %s %r", scope["method"], scope["path"], exc_info=True)
        raise


async def _end(task: asyncio.Task[None], grace_seconds: float) -> None:
    """Wait for the app's task, a turn of the loop at least: where it waits in `send`, it returns to its
    generator. Then cancel it."""
    await asyncio.wait({task}, timeout=grace_seconds)
    if not task.done():
        task.cancel()
        await asyncio.wait({task}, timeout=CANCEL_SECONDS)
    if not task.done():
        logger.error("an app task did not end within %s s of its cancellation", CANCEL_SECONDS)


def _keep(task: asyncio.Task[None]) -> asyncio.Task[None]:
    _tasks.add(task)
    task.add_done_callback(_forget)
    return task


def _forget(task: asyncio.Task[None]) -> None:
    _tasks.discard(task)
    if not task.cancelled():
        task.exception()  # marks it as seen; `_call` has logged it


def _scope(
    method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
) -> MutableMapping[str, Any]:
    named = {"host": "localhost", "content-length": str(len(body))}
    named.update({name.lower(): value for name, value in headers.items()})
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": SPEC_VERSION},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": path,
        "raw_path": quote(path, safe=_PATH_SAFE).encode("ascii"),
        "query_string": quote(query, safe=_QUERY_SAFE).encode("ascii"),
        "root_path": "",
        "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named.items()],
        "client": ("127.0.0.1", 0),
        "server": ("localhost", 80),
    }
