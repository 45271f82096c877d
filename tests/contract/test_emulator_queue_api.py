"""The queue API over HTTP: what clients get, with a worker played by hand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web

from tests.contract.emulator_bench import Client, Worker, serving


async def test_run_answers_at_once_and_status_follows_the_job() -> None:
    async with serving() as client:
        reply = await client.post("run", {"input": {"x": "é"}})
        assert reply.status == 200
        assert reply.body == f'{{"id":"{reply.json["id"]}","status":"IN_QUEUE"}}'.encode()
        worker, job_id = Worker(client), reply.json["id"]
        assert await worker.take() == {"id": job_id, "input": {"x": "é"}}
        assert (await client.status(job_id))["status"] == "IN_PROGRESS"
        await worker.done(job_id, output=["a"])
        status = (await client.post(f"status/{job_id}")).json  # the Go client asks by POST
        assert status["output"] == ["a"]
        assert list(status) == sorted(status)
        assert (status["status"], status["workerId"]) == ("COMPLETED", "pod-1")
        assert isinstance(status["delayTime"], int)
        assert isinstance(status["executionTime"], int)


async def test_runsync_answers_the_finished_job() -> None:
    async with serving() as client:
        call = asyncio.create_task(client.post("runsync", {"input": {"n": 1}}))
        worker = Worker(client)
        job = await worker.take()
        assert job["id"].startswith("sync-")
        await worker.done(job["id"], output={"a": 1}, is_stream=False)
        assert (await call).json.items() >= {"status": "COMPLETED", "output": {"a": 1}}.items()


async def test_runsync_answers_the_state_after_its_wait() -> None:
    async with serving() as client:
        reply = await client.post("runsync?wait=20", {"input": {"n": 1}})
        assert reply.status == 200
        assert reply.json == {"id": reply.json["id"], "status": "IN_QUEUE"}
        await Worker(client).take()
        waited = await client.get(f"status-sync/{reply.json['id']}?wait=20")
        assert waited.json["status"] == "IN_PROGRESS"


async def test_status_sync_returns_when_the_job_ends() -> None:
    async with serving() as client:
        job_id = await client.run()
        call = asyncio.create_task(client.post(f"status-sync/{job_id}?wait=5000"))
        worker = Worker(client)
        await worker.take()
        await worker.done(job_id, output=1)
        assert (await asyncio.wait_for(call, 2)).json["output"] == 1


async def test_stream_gives_each_chunk_once_and_ends_with_the_final_status() -> None:
    async with serving() as client:
        job_id, worker = await client.run(), Worker(client)
        assert (await client.get(f"stream/{job_id}")).json == {"status": "IN_QUEUE", "stream": []}
        await worker.take()
        await worker.stream(job_id, "a")
        await worker.stream(job_id, {"b": 1})
        reply = await client.get(f"stream/{job_id}")
        assert reply.json == {"status": "IN_PROGRESS", "stream": [{"output": "a"}, {"output": {"b": 1}}]}
        assert (await client.get(f"stream/{job_id}")).json["stream"] == []
        await worker.stream(job_id, "c")
        await worker.done(job_id, output=[])
        assert (await client.post(f"stream/{job_id}")).json == {
            "status": "COMPLETED",
            "stream": [{"output": "c"}],
        }
        assert (await client.get(f"stream/{job_id}")).json == {"status": "COMPLETED", "stream": []}
        assert (await client.status(job_id))["output"] == []


async def test_stream_can_be_held_until_a_chunk_comes() -> None:
    async with serving(stream_hold_s=5.0) as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        call = asyncio.create_task(client.get(f"stream/{job_id}"))
        await asyncio.sleep(0.05)
        assert not call.done()
        await worker.stream(job_id, "a")
        assert (await call).json["stream"] == [{"output": "a"}]


async def test_progress_updates_show_as_output_and_do_not_end_the_job() -> None:
    async with serving() as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        await worker.done(job_id, is_stream=False, status="IN_PROGRESS", output="half")
        assert (await client.status(job_id)).items() >= {"status": "IN_PROGRESS", "output": "half"}.items()


async def test_cancelling_a_running_job_reaches_the_worker_s_held_poll() -> None:
    async with serving(stop_hold_s=5.0) as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        poll = asyncio.create_task(worker.stops())
        await asyncio.sleep(0.05)
        reply = await client.call("POST", f"cancel/{job_id}", data=b"null")
        assert reply.json == {"id": job_id, "status": "CANCELLED"}
        assert await asyncio.wait_for(poll, 1) == [job_id]
        assert (await client.status(job_id))["status"] == "CANCELLED"
        assert (await worker.done(job_id, output=1)).status == 200


async def test_cancelling_a_queued_job_keeps_it_from_workers() -> None:
    async with serving(take_hold_s=0.05) as client:
        job_id = await client.run()
        assert (await client.post(f"cancel/{job_id}")).json["status"] == "CANCELLED"
        assert await Worker(client).take() is None
        status = await client.status(job_id)
        assert status == {
            "id": job_id,
            "status": "CANCELLED",
            "workerId": "",
            "executionTime": 0,
            "delayTime": status["delayTime"],
        }


async def test_retry_queues_a_failed_job_again() -> None:
    async with serving() as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        await worker.done(job_id, error="bad")
        assert (await client.status(job_id))["error"] == "bad"
        assert (await client.post(f"retry/{job_id}")).json == {"id": job_id, "status": "IN_QUEUE"}
        assert (await client.post(f"retry/{job_id}")).status == 400
        assert (await worker.take())["id"] == job_id


async def test_purge_counts_queued_jobs_and_forgets_them() -> None:
    async with serving() as client:
        first, second = await client.run(), await client.run()
        await Worker(client).take()
        assert (await client.post("purge-queue")).json == {"removed": 1, "status": "completed"}
        assert (await client.status(first))["status"] == "IN_PROGRESS"
        assert (await client.get(f"status/{second}")).status == 404


async def test_health_counts_jobs_and_workers() -> None:
    async with serving(take_hold_s=0.02) as client:
        none = {"idle": 0, "initializing": 0, "ready": 0, "running": 0, "throttled": 0, "unhealthy": 0}
        assert (await client.get("health")).json["workers"] == none
        client.platform.registry.started("pod-1")
        assert (await client.get("health")).json["workers"] == {**none, "initializing": 1, "ready": 1}
        worker = Worker(client)
        await worker.take()
        assert (await client.get("health")).json["workers"] == {**none, "idle": 1, "ready": 1}
        await client.run()
        await client.run()
        await worker.take()
        health = (await client.get("health")).json
        assert health["workers"] == {**none, "running": 1, "ready": 1}
        assert health["jobs"] == {"completed": 0, "failed": 0, "inProgress": 1, "inQueue": 1, "retried": 0}
        client.platform.registry.gone("pod-1")
        assert (await client.get("health")).json["workers"] == {**none, "unhealthy": 1}


async def test_requests_lists_the_jobs_that_are_kept() -> None:
    async with serving() as client:
        job_id = await client.run()
        assert (await client.get("requests")).json == {"requests": [{"id": job_id, "status": "IN_QUEUE"}]}


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "status/none", 404),
        ("GET", "stream/none", 404),
        ("POST", "cancel/none", 404),
        ("POST", "retry/none", 404),
        ("GET", "no-such-operation", 404),
        ("GET", "run", 405),
        ("POST", "runsync?wait=soon", 400),
    ],
)
async def test_errors_have_the_platform_s_shape(method: str, path: str, status: int) -> None:
    async with serving() as client:
        reply = await client.call(method, path, {"input": 1} if method == "POST" else None)
        assert reply.status == status
        assert reply.json["status"] == status
        assert reply.json.keys() == {"detail", "status", "title"}


async def test_another_endpoint_is_unknown() -> None:
    async with serving() as client:
        url = client.platform.url.replace("/local", "/other")
        async with client.session.post(f"{url}/run", json={"input": 1}) as response:
            assert response.status == 404


@pytest.mark.parametrize("body", [b"", b"[1]", b"{}", b'{"input":null}', b"not json", b'{"input":NaN}'])
async def test_a_malformed_body_is_a_400(body: bytes) -> None:
    async with serving() as client:
        assert (await client.post("run", data=body)).status == 400


async def test_a_body_over_the_limit_is_refused_with_the_chosen_code() -> None:
    async with serving(run_limit_bytes=1000, runsync_limit_bytes=2000) as client:
        body = {"input": "x" * 1500}
        assert (await client.post("run", body)).status == 413
        assert (await client.post("runsync?wait=10", body)).status == 200

        async def chunks() -> Any:  # without a content-length
            yield json.dumps(body).encode()

        assert (await client.post("run", data=chunks())).status == 413
    async with serving(run_limit_bytes=10, oversize_status=400) as client:
        assert (await client.post("run", {"input": "x" * 50})).status == 400


@pytest.mark.parametrize(
    ("header", "status", "detail"),
    [
        (None, 401, "no token provided"),
        ("Bearer wrong", 401, "invalid api key"),
        ("wrong", 401, "invalid api key"),
        ("Bearer secret", 200, None),
        ("bearer secret", 200, None),
        ("secret", 200, None),
    ],
)
async def test_with_an_api_key_only_that_key_is_let_in(
    header: str | None, status: int, detail: str | None
) -> None:
    async with serving(api_key="secret") as client:
        reply = await client.post("run", {"input": 1}, headers={"Authorization": header} if header else {})
        assert reply.status == status
        if detail:
            assert reply.json == {"detail": detail, "status": 401, "title": "Unauthorized"}


async def test_without_an_api_key_any_is_taken_and_strict_wants_one() -> None:
    async with serving() as client:
        assert (await client.post("run", {"input": 1}, headers={"Authorization": "Bearer x"})).status == 200
    async with serving(strict=True) as client:
        assert (await client.post("run", {"input": 1})).status == 401
        assert (await client.post("run", {"input": 1}, headers={"Authorization": "x"})).status == 200


async def test_rate_limits_answer_429_when_on() -> None:
    async with serving(rate_limits=True) as client:
        assert [(await client.post("purge-queue")).status for _ in range(3)] == [200, 200, 429]


async def test_a_queue_that_is_too_long_answers_429_when_limits_are_on() -> None:
    async with serving(rate_limits=True, queue_limit_per_worker=1) as client:
        for _ in range(51):
            await client.run()
        assert (await client.post("run", {"input": 1})).status == 429


async def test_execution_timeout_ends_the_job_and_stops_the_worker() -> None:
    async with serving(min_execution_timeout_ms=10, stop_hold_s=5.0) as client:
        job_id, worker = await client.run(policy={"executionTimeout": 50}), Worker(client)
        await worker.take()
        assert await asyncio.wait_for(worker.stops(), 2) == [job_id]
        assert (await client.status(job_id))["status"] == "TIMED_OUT"


async def test_status_ttl_shortens_the_record_s_life() -> None:
    async with serving() as client:
        job_id = await client.run()
        await client.post(f"cancel/{job_id}")
        assert (await client.get(f"status/{job_id}?ttl=30")).status == 200
        await asyncio.sleep(0.06)
        assert (await client.get(f"status/{job_id}")).status == 404


class Hook:
    """A webhook's receiver that answers the given codes in turn."""

    def __init__(self, *statuses: int) -> None:
        self.statuses = list(statuses)
        self.posts: list[tuple[Any, Any]] = []
        self.changed = asyncio.Event()

    async def handle(self, request: web.Request) -> web.Response:
        self.posts.append((request.headers, json.loads(await request.read())))
        self.changed.set()
        return web.Response(status=self.statuses.pop(0))

    async def wait_for(self, count: int) -> None:
        async with asyncio.timeout(3):
            while len(self.posts) < count:
                self.changed.clear()
                await self.changed.wait()


async def finished_with_webhook(client: Client, hook: Hook) -> str:
    app = web.Application()
    app.router.add_post("/hook", hook.handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
        worker, job_id = Worker(client), await client.run({"q": 1}, webhook=url)
        assert (await worker.take())["webhook"] == url
        await worker.done(job_id, output="done")
        await hook.wait_for(len(hook.statuses))
        await asyncio.sleep(0.1)  # a further try would come now
    finally:
        await runner.cleanup()
    return job_id


async def test_a_webhook_carries_the_job_with_its_input() -> None:
    async with serving(webhook_delays_s=(0.01, 0.01)) as client:
        hook = Hook(200)
        job_id = await finished_with_webhook(client, hook)
        ((headers, body),) = hook.posts
        assert headers["User-Agent"] == "Go-http-client/2.0"
        assert headers["Content-Type"] == "application/json"
        assert "traceparent" in headers
        assert (
            body.items() >= {"id": job_id, "status": "COMPLETED", "output": "done", "input": {"q": 1}}.items()
        )
        assert {"delayTime", "executionTime", "webhook"} <= body.keys()


async def test_a_webhook_is_tried_three_times_and_its_failure_does_not_alter_the_job() -> None:
    async with serving(webhook_delays_s=(0.01, 0.02)) as client:
        hook = Hook(500, 302, 404)
        job_id = await finished_with_webhook(client, hook)
        assert len(hook.posts) == 3
        assert (await client.status(job_id))["status"] == "COMPLETED"


async def test_a_webhook_that_was_accepted_at_the_second_try_is_not_sent_again() -> None:
    async with serving(webhook_delays_s=(0.01, 0.01)) as client:
        hook = Hook(500, 204)
        await finished_with_webhook(client, hook)
        assert len(hook.posts) == 2
