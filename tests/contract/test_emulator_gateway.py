"""The OpenAI gateway over HTTP: which job it makes, and what becomes of the worker's output."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.contract.emulator_bench import Client, Reply, Worker, serving

CHAT = "openai/v1/chat/completions"
STREAMED = {"stream": True, "messages": []}


async def plain_call(client: Client, worker: Worker, **message: Any) -> Reply:
    """A plain chat whose worker answers with `message`."""
    call = asyncio.create_task(client.post(CHAT, {"messages": []}))
    job = await worker.take()
    await worker.done(job["id"], **message)
    return await call


async def open_stream(client: Client, worker: Worker) -> tuple[asyncio.Task[aiohttp.ClientResponse], str]:
    """A streamed chat that its worker has taken: the (pending) response and the job's id."""
    url = f"{client.platform.url}/{CHAT}"
    response = asyncio.create_task(client.session.post(url, json=STREAMED))
    return response, (await worker.take())["id"]


async def test_a_post_becomes_a_job_with_route_and_body() -> None:
    async with serving() as client:
        call = asyncio.create_task(client.post(CHAT, {"messages": [], "model": "m"}))
        worker = Worker(client)
        job = await worker.take()
        assert job["input"] == {
            "openai_route": "/v1/chat/completions",
            "openai_input": {"messages": [], "model": "m"},
        }
        assert job["id"].startswith("sync-")
        await worker.done(job["id"], output=[{"b": 1, "a": 2}])
        reply = await call
        assert reply.status == 200
        assert reply.headers["Content-Type"] == "application/json; charset=utf-8"
        assert reply.body == b'{"a":2,"b":1}'


async def test_a_get_becomes_a_job_with_an_empty_body() -> None:
    async with serving() as client:
        call = asyncio.create_task(client.get("openai/v1/models?x=1"))
        worker = Worker(client)
        job = await worker.take()
        assert job["input"] == {"openai_route": "/v1/models", "openai_input": {}}
        await worker.done(job["id"], output=[{"data": []}])
        assert (await call).json == {"data": []}


async def test_the_query_can_be_forwarded() -> None:
    async with serving(gateway_forward_query=True) as client:
        call = asyncio.create_task(client.get("openai/v1/models?x=1"))
        worker = Worker(client)
        job = await worker.take()
        assert job["input"]["openai_route"] == "/v1/models?x=1"
        await worker.done(job["id"], output=[1])
        await call


@pytest.mark.parametrize(
    ("message", "body"),
    [
        ({"output": [{"a": 1}]}, b'{"a":1}'),
        ({"output": {"a": 1}}, b'{"a":1}'),
        ({"output": ['{"raw":  1}']}, b'{"raw":  1}'),
        ({"output": ["a", "b"]}, b'["a","b"]'),
        ({"output": [{"object": "error", "code": 404}]}, b'{"code":404,"object":"error"}'),
        ({}, b"null"),
    ],
)
async def test_a_completed_job_is_a_200_with_its_only_output(message: dict[str, Any], body: bytes) -> None:
    async with serving() as client:
        reply = await plain_call(client, Worker(client), **message)
        assert (reply.status, reply.body) == (200, body)


async def test_of_several_outputs_the_first_can_be_taken() -> None:
    async with serving(gateway_several_outputs="first") as client:
        assert (await plain_call(client, Worker(client), output=["a", "b"])).body == b"a"


async def test_a_failed_job_is_a_bare_500_that_tells_nothing_of_the_error() -> None:
    async with serving() as client:
        reply = await plain_call(client, Worker(client), error="secret detail")
        assert reply.status == 500
        assert reply.json == {"detail": "", "status": 500, "title": "Internal Server Error"}


async def test_a_plain_call_that_takes_too_long_is_cut_as_by_the_edge() -> None:
    async with serving(gateway_wait_s=0.05) as client:
        reply = await client.post(CHAT, {"messages": []})
        assert (reply.status, reply.json["status"]) == (524, 524)


@pytest.mark.parametrize("body", [b"not json", b"--multipart"])
async def test_what_is_not_json_is_a_400(body: bytes) -> None:
    async with serving() as client:
        assert (await client.post(CHAT, data=body)).status == 400


async def test_a_body_over_the_limit_is_refused() -> None:
    async with serving(gateway_limit_bytes=10) as client:
        assert (await client.post(CHAT, {"messages": ["x" * 20]})).status == 413


async def test_a_key_is_checked_here_too() -> None:
    async with serving(api_key="k") as client:
        assert (await client.get("openai/v1/models")).status == 401


async def test_chunks_are_relayed_one_by_one_as_they_arrive() -> None:
    async with serving() as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        assert not job_id.startswith("sync-")
        for chunk in ('data: {"é": 1}\n\n', "data: [DO", "NE]\n\n"):
            await worker.stream(job_id, chunk)
            response = await opening
            assert await asyncio.wait_for(response.content.readany(), 2) == chunk.encode()
        await worker.done(job_id, output=[])
        assert await response.read() == b""
        assert response.headers["Content-Type"] == "text/event-stream"
        response.release()


async def test_chunks_that_are_not_text_become_events() -> None:
    async with serving() as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.stream(job_id, {"b": 1, "a": 2})
        await worker.done(job_id, output=[])
        assert await (await opening).read() == b'data: {"a":2,"b":1}\n\n'


async def test_a_job_that_fails_before_its_first_chunk_is_a_500() -> None:
    async with serving() as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.done(job_id, error="bad")
        async with await opening as response:
            assert response.status == 500


async def test_a_job_that_fails_in_mid_stream_ends_the_body() -> None:
    async with serving() as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.stream(job_id, "data: 1\n\n")
        await worker.done(job_id, error="bad")
        async with await opening as response:
            assert (response.status, await response.read()) == (200, b"data: 1\n\n")


async def test_a_job_that_fails_in_mid_stream_can_cut_the_connection() -> None:
    async with serving(gateway_broken_stream="abort") as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.stream(job_id, "data: 1\n\n")
        await worker.done(job_id, error="bad")
        async with await opening as response:
            with pytest.raises(aiohttp.ClientError):
                await response.read()


async def test_a_worker_that_does_not_stream_gives_all_at_the_end() -> None:
    async with serving() as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.done(job_id, output=["data: 1\n\n", "data: [DONE]\n\n"])
        async with await opening as response:
            assert await response.read() == b"data: 1\n\ndata: [DONE]\n\n"


async def test_keep_alives_fill_the_wait_when_wanted() -> None:
    async with serving(gateway_keep_alive_s=0.02) as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        response = await asyncio.wait_for(opening, 2)  # headers come with the first comment
        assert await response.content.readany() == b": keep-alive\n\n"
        await worker.stream(job_id, "data: 1\n\n")
        await worker.done(job_id, output=["data: 1\n\n"])
        assert (await response.read()).replace(b": keep-alive\n\n", b"") == b"data: 1\n\n"
        response.release()


async def test_a_stream_can_have_a_longest_time() -> None:
    async with serving(gateway_stream_limit_s=0.1) as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.stream(job_id, "data: 1\n\n")
        async with await opening as response:
            assert await response.read() == b"data: 1\n\n"


@pytest.mark.parametrize(("choice", "text"), [("end", b"one"), ("continue", b"oneonetwo")])
async def test_after_a_lost_worker_a_begun_stream_ends_or_goes_on(choice: str, text: bytes) -> None:
    async with serving(gateway_stream_retry=choice) as client:
        first, second = Worker(client, "pod-1"), Worker(client, "pod-2")
        opening, job_id = await open_stream(client, first)
        await first.stream(job_id, "one")
        response = await opening
        assert await response.content.readany() == b"one"
        client.platform.registry.gone("pod-1")
        assert (await second.take())["id"] == job_id
        for chunk in ("one", "two"):
            await second.stream(job_id, chunk)
        await second.done(job_id, output=[])
        assert b"one" + await response.read() == text
        response.release()


async def test_after_a_worker_lost_before_its_first_chunk_the_stream_is_the_second_attempt_s() -> None:
    async with serving() as client:
        first, second = Worker(client, "pod-1"), Worker(client, "pod-2")
        opening, job_id = await open_stream(client, first)
        client.platform.registry.gone("pod-1")
        await second.take()
        await second.stream(job_id, "one")
        await second.done(job_id, output=[])
        async with await opening as response:
            assert await response.read() == b"one"


async def test_a_client_that_hangs_up_at_done_is_no_error(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The OpenAI SDK does: the end of the body then meets a closed connection."""

    async def closed(response: web.StreamResponse, data: bytes = b"") -> None:
        raise aiohttp.ClientConnectionResetError("Cannot write to closing transport")

    async with serving() as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.stream(job_id, "data: [DONE]\n\n")
        response = await opening
        await response.content.readany()
        with monkeypatch.context() as patch:
            patch.setattr(web.StreamResponse, "write_eof", closed)
            client.platform.queue.finish(client.platform.queue.get(job_id), "pod-1", output=[])
            await asyncio.sleep(0.05)
        response.close()
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


@pytest.mark.parametrize("cancels", [False, True])
async def test_a_client_that_hangs_up_cancels_its_job_only_if_chosen(cancels: bool) -> None:
    async with serving(gateway_cancel_on_disconnect=cancels) as client:
        worker = Worker(client)
        opening, job_id = await open_stream(client, worker)
        await worker.stream(job_id, "data: 1\n\n")
        (await opening).close()
        expected = "CANCELLED" if cancels else "IN_PROGRESS"
        for _ in range(100):
            if (await client.status(job_id))["status"] == expected:
                break
            await asyncio.sleep(0.02)
        assert (await client.status(job_id))["status"] == expected
        assert await worker.stops() == ([job_id] if cancels else [])
