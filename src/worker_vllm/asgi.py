"""Call an ASGI app in this process, streamed both ways, with a real disconnect when the caller leaves.

The declared ASGI spec_version is 2.3 on purpose: with 2.4 Starlette relies on `send` raising and never looks
for a disconnect while it streams, so generation for a client that left would run to its end.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

from worker_vllm.errors import InternalError, OutputTooLargeError

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
App = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

SPEC_VERSION = "2.3"
GRACE_SECONDS = 1.0
"""How long an app may take to end by itself after the disconnect, before its task is cancelled."""
CANCEL_SECONDS = 5.0
"""How long leaving then waits for the cancelled task."""
MAX_UNREAD_CHUNKS = 256
"""Body chunks that may wait unread before the app's `send` waits: bounds memory where the reader is slow."""
CATCH_UP_TURNS = 8
"""How many turns of the loop without a new chunk show that the app has nothing ready. A piece of text passes
vLLM's generators and Starlette in three to six."""
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

    def __init__(self, exchange: _Exchange) -> None:
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

    async def read_available(self) -> bytes:
        """What has come and was not read yet; waits until there is something. Empty at the body's end.

        Where the app's `send` had to wait, what the app has ready by now is in it as well.
        """
        return await self._exchange.all_chunks()

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
        grace_seconds: how long the app may run on after the disconnect before its task is cancelled.
        max_unread_chunks: how many body chunks may wait unread before the app's `send` waits too. An app that
            merges what it makes meanwhile, as vLLM does, then has less to do.

    Raises:
        InternalError: the app raised, or ended, before it began to answer (its exception is the cause, and
            logged).

    Leaving the context, however, sends `http.disconnect`, and the app's task has ended by then or has been
    cancelled. The app runs in a task of its own, which sees the caller's context variables.
    """
    exchange = _Exchange(body, max_unread_chunks)
    scope = _scope(method, path, query, headers, body)
    task = _keep(asyncio.create_task(_call(app, scope, exchange)))
    exchange.watch(task)
    try:
        await exchange.wait_for_start()
        yield Response(exchange)
    finally:
        exchange.disconnect()
        # A task of its own: a caller that is cancelled here does not wait, and the app still has its grace.
        await asyncio.shield(_keep(asyncio.create_task(_end(task, grace_seconds))))


class _Exchange:
    """One request's two channels, between the app's task and the reader."""

    def __init__(self, body: bytes, max_unread_chunks: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.started = False
        self.complete = False
        self.disconnected = asyncio.Event()
        self._body: bytes | None = body
        self._chunks: deque[bytes] = deque()
        self._max_unread_chunks = self._unread_allowed = max_unread_chunks
        self._app_waits = False
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def watch(self, task: asyncio.Task[None]) -> None:
        """Notice the end of the app's task."""
        self._task = task
        task.add_done_callback(lambda _: self._changed.set())

    def disconnect(self) -> None:
        """Tell the app that nobody reads any more, and let a waiting `send` go.

        From here on `send` never waits, so that the cancellation that Starlette answers with finds the app in
        its own generator and not in `send`: there it would leave the generator, and with it the engine's
        request, open until the garbage collector comes by.
        """
        self._chunks.clear()
        self._room.set()
        self.disconnected.set()

    async def receive(self) -> Message:
        """ASGI's receive: the whole body, then nothing until the disconnect."""
        if self._body is not None and not self.disconnected.is_set():
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """ASGI's send: nothing but a no-op once the reader has left, as the spec has it up to 2.3."""
        if self.disconnected.is_set():
            return
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = _header_dict(message.get("headers", ()))
            self.started = True
        elif message["type"] == "http.response.body":
            await self._put(bytes(message.get("body", b"")))
            self.complete = not message.get("more_body", False)
        self._changed.set()

    async def wait_for_start(self) -> None:
        """Wait until the app has sent its status."""
        while not self.started:
            self._raise_if_ended()
            await self._wait_for_change()

    async def next_chunk(self) -> bytes | None:
        """The next piece of the body, or None at its end."""
        while not self._chunks:
            if self.complete:
                return None
            if self.disconnected.is_set():
                raise RuntimeError("the response is closed")
            self._raise_if_ended()
            await self._wait_for_change()
        self._room.set()
        return self._chunks.popleft()

    async def all_chunks(self) -> bytes:
        """All pieces of the body that are there or ready, at least one; empty at its end."""
        if self._app_waits:
            await self._catch_up()
        chunk = await self.next_chunk()
        if not self._chunks:
            return chunk or b""
        chunks = [chunk or b"", *self._chunks]
        self._chunks.clear()
        return b"".join(chunks)

    async def _put(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._changed.set()
        while len(self._chunks) >= self._unread_allowed and not self.disconnected.is_set():
            self._app_waits = True
            self._room.clear()
            await self._room.wait()
        self._app_waits = False

    async def _catch_up(self) -> None:
        """Let the app, which waits in `send`, hand over what it has made meanwhile: a few turns of the loop.
        It has nothing ready when nothing has come for `CATCH_UP_TURNS` turns."""
        self._unread_allowed = sys.maxsize
        self._room.set()
        quiet, unread = 0, len(self._chunks)
        while quiet < CATCH_UP_TURNS and len(self._chunks) < MAX_UNREAD_CHUNKS and not self.complete:
            await asyncio.sleep(0)
            quiet = quiet + 1 if len(self._chunks) == unread else 0
            unread = len(self._chunks)
        self._unread_allowed = self._max_unread_chunks

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_if_ended(self) -> None:
        if self._task is None or not self._task.done():
            return
        failure = None if self._task.cancelled() else self._task.exception()
        raise InternalError("vLLM's app failed while it answered this request") from failure


async def _call(app: App, scope: MutableMapping[str, Any], exchange: _Exchange) -> None:
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
    """Wait for the app's task, then cancel it."""
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


def _header_dict(pairs: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
