from __future__ import annotations

import asyncio
import contextvars
import gc
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from worker_vllm import asgi, exchange
from worker_vllm.errors import InternalError, OutputTooLargeError

Endpoint = Callable[[Request], Awaitable[Response]]


def app_of(endpoint: Endpoint, path: str = "/v1/test") -> Starlette:
    return Starlette(routes=[Route(path, endpoint, methods=["GET", "POST"])])


def call(app: Any, **changes: Any) -> Any:
    request = {"method": "POST", "path": "/v1/test", "headers": {}, "body": b""}
    return asgi.open_response(app, **{**request, **changes})


class Stream:
    """A StreamingResponse whose generator waits for `release` before each chunk and says how it ended."""

    def __init__(self, chunks: int = 3) -> None:
        self.chunks = chunks
        self.release = asyncio.Semaphore(0)
        self.made = 0
        self.ended = asyncio.Event()
        self.cancelled = False

    async def endpoint(self, request: Request) -> Response:
        return StreamingResponse(self._generate(), media_type="text/event-stream")

    async def _generate(self) -> AsyncGenerator[str, None]:
        try:
            for number in range(self.chunks):
                await self.release.acquire()
                await asyncio.sleep(0)
                self.made += 1
                yield f"data: {number}\n\n"
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        finally:
            self.ended.set()


def tasks_of_others() -> set[asyncio.Task[Any]]:
    return asyncio.all_tasks() - {asyncio.current_task()}  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
async def no_task_is_left() -> AsyncIterator[None]:
    yield
    await asyncio.sleep(0)
    assert tasks_of_others() == set()
    assert not asgi._tasks


# --- the request as the app sees it ---


async def test_the_app_gets_method_path_query_headers_and_body() -> None:
    async def endpoint(request: Request) -> Response:
        return JSONResponse(
            {
                "method": request.method,
                "path": request.url.path,
                "query": dict(request.query_params),
                "header": request.headers["x-request-id"],
                "length": request.headers["content-length"],
                "body": await request.json(),
            }
        )

    async with call(
        app_of(endpoint), query="a=1&b=%C3%A9", headers={"X-Request-Id": "job-1"}, body=b'{"n": 1}'
    ) as response:
        assert response.status == 200
        assert response.headers["content-type"] == "application/json"
        assert await response.read() == (
            b'{"method":"POST","path":"/v1/test","query":{"a":"1","b":"\xc3\xa9"},'
            b'"header":"job-1","length":"8","body":{"n":1}}'
        )


async def test_a_query_outside_ascii_is_percent_encoded() -> None:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(request.query_params["q"])

    async with call(app_of(endpoint), query="q=日 本") as response:
        assert (await response.read()).decode() == "日 本"


async def test_a_stream_is_made_in_the_apps_own_task() -> None:
    stream = Stream(chunks=1)
    async with call(app_of(stream.endpoint)) as response:
        assert len(tasks_of_others()) == 1
        stream.release.release()
        assert await response.read() == b"data: 0\n\n"


async def test_an_answer_that_has_ended_leaves_nothing_to_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi, "_end", None)
    stream = Stream(chunks=1)
    stream.release.release()
    async with call(app_of(stream.endpoint)) as response:
        assert await response.read() == b"data: 0\n\n"


async def test_header_names_are_lower_case_and_repeated_ones_joined() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"X-One", b"1"), (b"vary", b"a"), (b"Vary", b"b")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"x"})

    async with call(app) as response:
        assert response.headers == {"x-one": "1", "vary": "a, b"}


async def test_the_app_sees_the_callers_context_variables() -> None:
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable")
    variable.set("job-1")

    async def endpoint(request: Request) -> Response:
        return PlainTextResponse(variable.get())

    async with call(app_of(endpoint)) as response:
        assert await response.read() == b"job-1"


async def test_an_error_status_is_an_answer_like_any_other() -> None:
    async with call(app_of(_never), path="/v1/other") as response:
        assert response.status == 404
        assert await response.read() == b"Not Found"


async def _never(request: Request) -> Response:
    raise AssertionError("not reached")


# --- streaming ---


async def test_chunks_arrive_as_they_are_made() -> None:
    stream = Stream()
    async with call(app_of(stream.endpoint)) as response:
        assert response.status == 200
        assert stream.made == 0
        for number in range(3):
            stream.release.release()
            assert await anext(response) == b"data: %d\n\n" % number
            assert stream.made == number + 1
        with pytest.raises(StopAsyncIteration):
            await anext(response)


async def test_a_slow_reader_slows_the_app() -> None:
    stream = Stream(chunks=100)
    for _ in range(100):
        stream.release.release()
    async with call(app_of(stream.endpoint), max_unread_chunks=5) as response:
        for _ in range(50):
            await asyncio.sleep(0)
        assert stream.made == 5  # the fifth waits in `send`
        assert len([chunk async for chunk in response]) == 100


async def test_read_stops_at_its_limit() -> None:
    stream = Stream(chunks=10)
    for _ in range(10):
        stream.release.release()
    with pytest.raises(OutputTooLargeError, match="20 bytes"):
        async with call(app_of(stream.endpoint), max_unread_chunks=1) as response:
            await response.read(max_bytes=20)
    assert stream.made < 10
    assert stream.ended.is_set()


async def test_read_takes_exactly_its_limit() -> None:
    async def endpoint(request: Request) -> Response:
        return PlainTextResponse("x" * 20)

    async with call(app_of(endpoint)) as response:
        assert len(await response.read(max_bytes=20)) == 20


# --- leaving: disconnect, grace, cancel ---


async def test_leaving_before_the_first_chunk_stops_the_generator() -> None:
    stream = Stream()
    async with call(app_of(stream.endpoint)):
        pass
    assert stream.ended.is_set()
    assert stream.cancelled


async def test_leaving_in_mid_stream_stops_the_generator_at_once() -> None:
    stream = Stream()
    started = asyncio.get_running_loop().time()
    async with call(app_of(stream.endpoint), grace_seconds=30) as response:
        stream.release.release()
        await anext(response)
    assert stream.ended.is_set()
    assert stream.made == 1
    assert asyncio.get_running_loop().time() - started < 5


async def test_leaving_while_the_app_waits_for_room_closes_the_generator_without_the_collector() -> None:
    """Cancelled inside `send`, Starlette leaves its generator open until the garbage collector comes by."""
    gc.disable()
    try:
        await _leave_while_the_app_waits_for_room()
    finally:
        gc.enable()


async def _leave_while_the_app_waits_for_room() -> None:
    stream = Stream(chunks=100)
    for _ in range(100):
        stream.release.release()
    async with call(app_of(stream.endpoint), max_unread_chunks=1, grace_seconds=30):
        await asyncio.sleep(0.01)
    assert stream.ended.is_set()
    assert stream.made < 100


async def test_leaving_after_the_end_is_quiet() -> None:
    stream = Stream(chunks=1)
    stream.release.release()
    async with call(app_of(stream.endpoint)) as response:
        await response.read()
    assert stream.ended.is_set()
    assert not stream.cancelled


async def test_a_reader_cancelled_while_waiting_stops_the_generator() -> None:
    stream = Stream()

    async def consume() -> None:
        async with call(app_of(stream.endpoint)) as response:
            await response.read()

    consumer = asyncio.ensure_future(consume())
    await asyncio.sleep(0.01)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert stream.ended.is_set()


async def test_a_caller_cancelled_before_the_answer_begins_stops_the_app() -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        seen.append((await receive())["type"])

    async def consume() -> None:
        async with call(app):
            raise AssertionError("no answer ever begins")

    consumer = asyncio.ensure_future(consume())
    await asyncio.sleep(0.01)
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert seen == ["http.disconnect"]


async def test_a_handler_that_listens_for_the_disconnect_hears_it() -> None:
    """vLLM's plain routes watch `receive` beside their work."""
    heard = asyncio.Event()

    async def endpoint(request: Request) -> Response:
        assert await request.json() == {}
        assert (await request.receive())["type"] == "http.disconnect"
        heard.set()
        return Response()

    consumer = asyncio.ensure_future(_open_and_leave(app_of(endpoint), body=b"{}"))
    await asyncio.sleep(0.01)
    assert not heard.is_set()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
    assert heard.is_set()


async def _open_and_leave(app: Any, **changes: Any) -> None:
    async with call(app, **changes):
        pass


async def _open_and_stay_a_moment(app: Any, **changes: Any) -> None:
    async with call(app, **changes):
        await asyncio.sleep(0.01)


async def _ignore_the_disconnect(receive: Any, send: Any, cancelled: asyncio.Event) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    listener = asyncio.ensure_future(receive())
    try:
        await asyncio.sleep(60)
    finally:
        cancelled.set()
        listener.cancel()


async def test_an_app_that_hears_and_ignores_the_disconnect_is_cancelled_after_the_grace() -> None:
    cancelled = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await _ignore_the_disconnect(receive, send, cancelled)

    started = asyncio.get_running_loop().time()
    async with call(app, grace_seconds=0.1):
        await asyncio.sleep(0.01)
    assert cancelled.is_set()
    assert asyncio.get_running_loop().time() - started > 0.1


async def test_an_app_that_does_not_listen_is_cancelled_at_once() -> None:
    cancelled = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    started = asyncio.get_running_loop().time()
    async with call(app, grace_seconds=30):
        pass
    assert cancelled.is_set()
    assert asyncio.get_running_loop().time() - started < 5


async def test_a_caller_cancelled_during_the_grace_leaves_and_the_app_still_ends() -> None:
    cancelled = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await _ignore_the_disconnect(receive, send, cancelled)

    leaver = asyncio.ensure_future(_open_and_stay_a_moment(app, grace_seconds=0.1))
    await asyncio.sleep(0.05)
    leaver.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaver
    assert not cancelled.is_set()
    await asyncio.sleep(0.2)
    assert cancelled.is_set()


async def test_an_app_that_will_not_end_is_named_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(asgi, "CANCEL_SECONDS", 0.01)
    release = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    async with call(app, grace_seconds=0):
        pass
    assert "did not end" in caplog.text
    release.set()
    await asyncio.sleep(0.01)


async def test_sending_after_the_reader_left_is_a_no_op() -> None:
    done = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        for _ in range(1000):
            await send({"type": "http.response.body", "body": b"x", "more_body": True})
        done.set()

    async with call(app, max_unread_chunks=1):
        pass
    assert done.is_set()


async def test_iterating_after_leaving_is_refused() -> None:
    stream = Stream()
    async with call(app_of(stream.endpoint)) as response:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        await anext(response)


# --- an app that fails ---


async def test_an_app_that_raises_before_it_answers_is_an_internal_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("secret detail")

    with pytest.raises(InternalError) as caught:
        async with call(app):
            raise AssertionError("no answer")
    assert "secret" not in caught.value.message
    assert isinstance(caught.value.__cause__, ValueError)
    assert "Traceback" in caplog.text


async def test_an_app_that_raises_in_mid_stream_fails_after_its_chunks(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def generate() -> AsyncGenerator[str, None]:
        yield "one"
        yield "two"
        raise ValueError("broken")

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(generate())

    seen = []
    with pytest.raises(InternalError):
        async with call(app_of(endpoint)) as response:
            async for chunk in response:
                seen.append(chunk)
    assert seen == [b"one", b"two"]
    assert caplog.text.count("Traceback") == 1


async def test_an_app_that_stops_without_finishing_is_an_internal_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})

    with pytest.raises(InternalError):
        async with call(app) as response:
            await response.read()


async def test_an_app_that_says_nothing_is_an_internal_error() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        return

    with pytest.raises(InternalError):
        async with call(app):
            raise AssertionError("no answer")


async def test_what_starlette_raises_behind_its_own_500_is_only_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def endpoint(request: Request) -> Response:
        raise ValueError("broken")

    async with call(app_of(endpoint)) as response:
        assert response.status == 500
        assert await response.read() == b"Internal Server Error"
    assert "Traceback" in caplog.text


async def test_what_an_app_raises_after_the_reader_left_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        raise ValueError("the client left")

    with caplog.at_level(logging.INFO):
        async with call(app):
            pass
    assert caplog.records == []


async def test_a_path_cannot_break_the_log_line(caplog: pytest.LogCaptureFixture) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ValueError("broken")

    with pytest.raises(InternalError):
        async with call(app, path="/a\nERROR forged"):
            pass
    assert "\n" not in caplog.records[0].getMessage()


async def test_what_came_while_the_reader_was_away_is_read_at_once() -> None:
    stream = Stream()
    async with call(app_of(stream.endpoint)) as response:
        stream.release.release()
        assert await response.read_available() == b"data: 0\n\n"
        for _ in range(2):
            stream.release.release()
        await stream.ended.wait()
        assert await response.read_available() == b"data: 1\n\ndata: 2\n\n"
        assert await response.read_available() == b""


class Merging:
    """An app that merges what it makes while nobody reads, as vLLM's output collector does: one chunk holds
    all that has come since the last."""

    def __init__(self) -> None:
        self.ready = ""
        self.finished = False
        self.news = asyncio.Event()
        self.chunks = 0

    def make(self, text: str, *, finished: bool = False) -> None:
        self.ready += text
        self.finished = finished
        self.news.set()

    async def endpoint(self, request: Request) -> Response:
        return StreamingResponse(self._generate(), media_type="text/event-stream")

    async def _generate(self) -> AsyncGenerator[str, None]:
        while not self.finished or self.ready:
            await self.news.wait()
            self.news.clear()
            text, self.ready = self.ready, ""
            self.chunks += 1
            yield text
        yield "usage"
        yield "[DONE]"


async def test_what_an_app_is_at_is_in_the_same_reading() -> None:
    app = Merging()
    async with call(app_of(app.endpoint)) as response:
        app.make("a")
        assert await response.read_available(lambda: False) == b"a"
        app.make("b", finished=True)
        assert await response.read_available(lambda: False) == b"busage[DONE]"
        assert await response.read_available(lambda: False) == b""


async def test_a_settled_app_is_not_waited_for() -> None:
    app = Merging()
    async with call(app_of(app.endpoint)) as response:
        app.make("a")
        assert await response.read_available() == b"a"
        app.make("b")
        for _ in range(20):
            await asyncio.sleep(0)
        app.make("c")
        assert await response.read_available(lambda: True) == b"b"


async def test_an_app_that_waits_for_its_reader_hears_of_the_disconnect() -> None:
    stream = Stream(chunks=100)
    for _ in range(100):
        stream.release.release()
    async with call(app_of(stream.endpoint), max_unread_chunks=1) as response:
        await response.read_available()
        for _ in range(20):
            await asyncio.sleep(0)
    assert stream.ended.is_set()
    assert stream.made < 100


async def test_an_app_that_always_has_more_does_not_keep_the_reader_waiting() -> None:
    """Under load every turn of the loop brings a token; a reading that waits for quiet would take all."""

    async def endless() -> AsyncGenerator[str, None]:
        while True:
            await asyncio.sleep(0)
            yield "x"

    async def endpoint(request: Request) -> Response:
        return StreamingResponse(endless())

    async with call(app_of(endpoint)) as response:
        for _ in range(5):
            assert len(await response.read_available(lambda: False)) <= 3 * exchange.CATCH_UP_TURNS
