"""One request's two channels between an ASGI app's task and its reader, with their back pressure."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import MutableMapping
from typing import Any

from worker_vllm.errors import InternalError

Message = MutableMapping[str, Any]

MAX_UNREAD_CHUNKS = 256
"""Body chunks that may wait unread before the app's `send` waits: bounds memory where the reader is slow."""
CATCH_UP_TURNS = 8
"""How many turns of the loop an app that had to wait gets to hand over what it has ready: a piece of text
passes vLLM's generators and Starlette in three to six."""
CATCH_UP_CHUNKS = 4
"""How many chunks it may hand over then: the merged text, and the events that close a stream behind it."""


class Exchange:
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
        """Let the app, which waits in `send`, hand over what it has made meanwhile: a few turns of the loop
        and a few chunks, no more. A busy loop's turns are long enough for new tokens, and a reader that
        waited for quiet would take the whole stream before it came back (seen on a GPU at 256 streams)."""
        unread = len(self._chunks)
        self._unread_allowed = unread + CATCH_UP_CHUNKS
        self._room.set()
        for _ in range(CATCH_UP_TURNS):
            await asyncio.sleep(0)
            if self.complete or len(self._chunks) >= self._unread_allowed:
                break
        self._unread_allowed = self._max_unread_chunks

    async def _wait_for_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()

    def _raise_if_ended(self) -> None:
        if self._task is None or not self._task.done():
            return
        failure = None if self._task.cancelled() else self._task.exception()
        raise InternalError("vLLM's app failed while it answered this request") from failure


def _header_dict(pairs: Any) -> dict[str, str]:
    headers: dict[str, str] = {}
    for raw_name, raw_value in pairs:
        name, value = raw_name.decode("latin-1").lower(), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
