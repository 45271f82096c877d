"""One request's two channels between an ASGI app's task and its reader, with their back pressure."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

from worker_vllm.errors import InternalError

Message = MutableMapping[str, Any]

MAX_UNREAD_CHUNKS = 256
"""Body chunks that may wait unread before the app's `send` waits: bounds memory where the reader is slow."""
CATCH_UP_TURNS = 8
"""How many turns of the loop an app gets to hand over the rest of what it is at: a piece of text passes
vLLM's generators and Starlette in three to six."""


class Exchange:
    """One request's two channels, between the app's task and the reader."""

    def __init__(self, body: bytes, max_unread_chunks: int) -> None:
        self.status = 0
        self.headers: dict[str, str] = {}
        self.started = False
        self.complete = False
        self.disconnected = asyncio.Event()
        self._listeners = 0
        self._body: bytes | None = body
        self._chunks: deque[bytes] = deque()
        self._max_unread_chunks = max_unread_chunks
        self._changed = asyncio.Event()
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def watch(self, task: asyncio.Task[None]) -> None:
        """Notice the end of the app's task."""
        self._task = task
        task.add_done_callback(lambda _: self._changed.set())

    def disconnect(self) -> bool:
        """Tell the app that nobody reads any more, and let a waiting `send` go. Returns whether the app ends
        by itself then: it waits for the news, or has answered in full.

        From here on `send` never waits, so that the cancellation that follows finds the app in its own
        generator and not in `send`: there it would leave the generator, and with it the engine's request,
        open until the garbage collector comes by.
        """
        self._chunks.clear()
        self._room.set()
        self.disconnected.set()
        return self._listeners > 0 or self.complete

    async def receive(self) -> Message:
        """ASGI's receive: the whole body, then nothing until the disconnect."""
        if self._body is not None and not self.disconnected.is_set():
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        self._listeners += 1
        try:
            await self.disconnected.wait()
        finally:
            self._listeners -= 1
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

    async def all_chunks(self, settled: Callable[[], bool]) -> bytes:
        """All pieces of the body that are there, at least one; empty at its end. Where the app is not settled
        yet, it gets a few turns of the loop for more."""
        chunk = await self.next_chunk()
        if chunk is None:
            return b""
        for _ in range(CATCH_UP_TURNS):
            if self.complete or settled():
                break
            await asyncio.sleep(0)
        if not self._chunks:
            return chunk
        chunks = [chunk, *self._chunks]
        self._chunks.clear()
        return b"".join(chunks)

    async def _put(self, chunk: bytes) -> None:
        if chunk:
            self._chunks.append(chunk)
            self._changed.set()
        while len(self._chunks) >= self._max_unread_chunks and not self.disconnected.is_set():
            self._room.clear()
            await self._room.wait()

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
