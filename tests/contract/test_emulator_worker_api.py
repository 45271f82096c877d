"""The worker's side of the wire, and the faults that can be put on it."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import aiohttp
import pytest

from tests.contract.emulator_bench import Client, Worker, serving


async def test_take_is_held_until_a_job_comes() -> None:
    async with serving(take_hold_s=5.0) as client:
        take = asyncio.create_task(Worker(client).take())
        await asyncio.sleep(0.05)
        assert not take.done()
        job_id = await client.run()
        assert (await asyncio.wait_for(take, 1))["id"] == job_id


async def test_take_answers_204_only_after_the_hold() -> None:
    async with serving(take_hold_s=0.1) as client:
        started = asyncio.get_running_loop().time()
        assert await Worker(client).take() is None
        assert asyncio.get_running_loop().time() - started >= 0.09


async def test_a_batch_is_a_list_of_at_most_so_many() -> None:
    async with serving() as client:
        ids = [await client.run() for _ in range(3)]
        worker = Worker(client)
        assert [job["id"] for job in await worker.take(batch=2)] == ids[:2]
        assert [job["id"] for job in await worker.take(batch=2)] == ids[2:]


async def test_waiting_workers_are_served_in_turn() -> None:
    async with serving(take_hold_s=5.0) as client:
        first = asyncio.create_task(Worker(client, "a").take())
        await asyncio.sleep(0.05)
        second = asyncio.create_task(Worker(client, "b").take())
        await asyncio.sleep(0.05)
        one, two = await client.run(), await client.run()
        assert ((await first)["id"], (await second)["id"]) == (one, two)


async def test_a_url_without_a_question_mark_is_understood() -> None:
    async with serving() as client:
        await client.run()
        await client.run()
        reply = await client.get("job-take/pod-1&job_in_progress=0")
        assert reply.status == 200
        assert (await client.status(reply.json["id"]))["workerId"] == "pod-1"
        batch = await client.get("job-take-batch/pod-1&batch_size=3&job_in_progress=1")
        assert len(batch.json) == 1


async def test_a_fractional_batch_size_is_cut_and_a_wrong_one_refused() -> None:
    async with serving() as client:
        for _ in range(3):
            await client.run()
        assert len((await client.get("job-take-batch/pod-1?batch_size=2.5")).json) == 2
        assert (await client.get("job-take-batch/pod-1?batch_size=many")).status == 400


async def test_a_worker_that_hung_up_gets_no_job() -> None:
    async with serving(take_hold_s=5.0) as client:
        take = asyncio.create_task(Worker(client, "gone").take())
        await asyncio.sleep(0.05)
        take.cancel()
        await asyncio.sleep(0.05)
        job_id = await client.run()
        assert (await client.status(job_id))["status"] == "IN_QUEUE"
        assert (await Worker(client, "here").take())["id"] == job_id


async def test_bodies_are_json_whatever_their_label() -> None:
    async with serving() as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        assert (await worker.stream(job_id, "a=b&c=%20")).status == 200
        assert (await client.get(f"stream/{job_id}")).json["stream"] == [{"output": "a=b&c=%20"}]


@pytest.mark.parametrize("body", [b"not json", b'{"output": NaN}', b"[1]", b""])
async def test_a_post_that_is_no_json_object_is_a_400(body: bytes) -> None:
    async with serving() as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        assert (await client.post(f"job-done/pod-1/{job_id}?x=1", data=body)).status == 400
        assert (await client.status(job_id))["status"] == "IN_PROGRESS"


async def test_posts_for_an_unknown_job_are_a_404() -> None:
    async with serving() as client:
        assert (await Worker(client).done("none", output=1)).status == 404
        assert (await Worker(client).stream("none", 1)).status == 404


async def test_a_large_chunk_is_split() -> None:
    async with serving(chunk_limit_bytes=100) as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        await worker.stream(job_id, "巴" * 100)
        chunks = [entry["output"] for entry in (await client.get(f"stream/{job_id}")).json["stream"]]
        assert "".join(chunks) == "巴" * 100
        assert all(len(chunk.encode()) <= 100 for chunk in chunks)


async def test_a_large_chunk_is_refused_as_in_strict_mode() -> None:
    async with serving(
        strict=True, check_worker_key=False, require_key=False, chunk_limit_bytes=100
    ) as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        assert (await worker.stream(job_id, "x" * 100)).status == 400
        assert (await worker.stream(job_id, "x" * 50)).status == 200


async def test_a_large_output_is_refused_where_the_limit_is_enforced() -> None:
    async with serving(enforce_output_limit=True, run_limit_bytes=1000, oversize_output_status=400) as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        assert (await worker.done(job_id, output="x" * 1000)).status == 400
        assert (await worker.done(job_id, output="x")).status == 200


async def test_a_worker_s_key_is_checked_when_chosen() -> None:
    async with serving(check_worker_key=True) as client:
        for key, status in (("wrong", 401), (client.platform.worker_key, 200)):
            reply = await client.call("GET", "ping/pod-1?gpu=x", headers={"Authorization": key})
            assert reply.status == status


async def test_the_policy_reaches_the_worker_when_chosen() -> None:
    async with serving(send_policy=True) as client:
        await client.run(policy={"ttl": 20_000})
        assert (await Worker(client).take())["policy"] == {"ttl": 20_000}


async def test_lone_surrogates_reach_the_worker_as_sent_and_the_client_replaced() -> None:
    async with serving() as client:
        reply = await client.post("run", data=b'{"input": "a\\ud800b"}')
        worker = Worker(client)
        assert (await worker.take())["input"] == "a\ud800b"
        await client.post(f"job-done/pod-1/{reply.json['id']}?x=1", data=b'{"output": "a\\ud800b"}')
        assert (await client.status(reply.json["id"]))["output"] == "a\ufffdb"


async def test_missing_pings_lose_the_job_to_another_worker_once() -> None:
    async with serving(lost_after_s=0.15, stop_hold_s=0.05) as client:
        job_id = await client.run()
        first, second = Worker(client, "a"), Worker(client, "b")
        await first.take()
        await first.ping(job_id)
        await asyncio.sleep(0.3)
        status = await client.status(job_id)
        assert (status["status"], status["retries"]) == ("IN_QUEUE", 1)
        assert await first.stops() == [job_id]
        assert (await first.done(job_id, output="old")).status == 200
        await second.take()
        await second.ping(job_id)
        await asyncio.sleep(0.3)
        status = await client.status(job_id)
        assert (status["status"], status["error"]) == ("FAILED", "job timed out after 1 retries")


async def test_an_unfit_worker_is_unhealthy_until_it_asks_for_a_job(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(take_hold_s=0.02) as client:
        worker = Worker(client)
        await client.get("ping/pod-1?gpu=x&status=unhealthy&check=disk&reason=full&runpod_version=1.12.0")
        assert (await client.get("health")).json["workers"]["unhealthy"] == 1
        assert "pod-1 is unhealthy: disk: full" in caplog.text
        await worker.take()
        assert (await client.get("health")).json["workers"]["unhealthy"] == 0


@pytest.mark.parametrize("message", [{}, {"output": None}, {"output": None, "error": None}, {"error": ""}])
async def test_a_result_of_nothing_has_no_output(message: dict[str, None]) -> None:
    async with serving() as client:
        worker, job_id = await running(client)
        await worker.done(job_id, **message)
        assert (await client.status(job_id)).keys() == {
            "id",
            "status",
            "delayTime",
            "executionTime",
            "workerId",
        }


async def test_a_long_ping_is_understood() -> None:
    """The SDK names every running job in the query: 500 of them outgrow the usual limit for a line."""
    async with serving() as client:
        reply = await Worker(client).ping(*(f"{index:040d}" for index in range(500)))
        assert reply.status == 200


async def test_a_burst_of_connections_waits_and_is_not_dropped() -> None:
    """A dropped one is tried again after a second, and a first token comes that late (seen with 256 jobs)."""
    async with serving() as client, AsyncExitStack() as connections:
        address = urlsplit(client.platform.url)
        for _ in range(300):  # the server's loop does not get to accept any meanwhile
            connections.enter_context(socket.create_connection((address.hostname, address.port), timeout=0.5))


async def test_a_stop_is_sent_again_while_pings_name_the_job_if_chosen() -> None:
    async with serving(stop_again_s=0.4, stop_hold_s=0.02) as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        await client.post(f"cancel/{job_id}")
        assert await worker.stops() == [job_id]
        await worker.ping(job_id)
        assert await worker.stops() == []
        await asyncio.sleep(0.45)
        await worker.ping(job_id)
        assert await worker.stops() == [job_id]
        await worker.ping()  # it has let go of the job
        await asyncio.sleep(0.45)
        await worker.ping(job_id)
        assert await worker.stops() == []


async def test_an_unsent_stop_does_not_hit_the_next_attempt() -> None:
    async with serving(stop_hold_s=0.02) as client:
        job_id, worker = await client.run(), Worker(client)
        await worker.take()
        client.platform.registry.stop_job("pod-1", job_id)
        client.platform.queue.worker_gone("pod-1")
        assert (await worker.take())["id"] == job_id
        assert await worker.stops() == []


async def test_stop_pod_drains_the_worker_and_then_asks_for_its_restart() -> None:
    async with serving(take_hold_s=0.05) as client:
        drained: list[str] = []
        client.platform.registry.on_drained = drained.append
        first, second = await client.run(), await client.run()
        worker = Worker(client)
        await worker.take(batch=2)
        await client.run()
        await worker.done(first, output=1, stopPod=True)
        assert await worker.take() is None
        assert drained == []
        await client.post(f"cancel/{second}")
        assert drained == ["pod-1"]


async def test_a_stopping_worker_s_polls_are_released() -> None:
    async with serving(take_hold_s=20.0, stop_hold_s=20.0) as client:
        worker = Worker(client)
        polls = asyncio.gather(worker.take(), worker.stops())
        await asyncio.sleep(0.05)
        client.platform.registry.stopping("pod-1")
        assert await asyncio.wait_for(polls, 2) == [None, []]


async def test_what_was_counted_can_be_asked_for() -> None:
    async with serving() as client:
        worker, job_id = await running(client)
        await worker.stream(job_id, "x")
        for _ in range(2):
            await worker.done(job_id, output=1)
        url = client.platform.url.replace("/v2/local", "/local/stats")
        async with client.session.get(url) as response:
            stats = await response.json()
        assert stats["calls"].items() >= {"job-stream": 1, "job-done": 2, "job-take": 1}.items()
        assert stats["results"] == {"accepted": 1, "duplicate": 1, "late": 0}


# --- faults and delay


async def test_the_round_trip_is_the_worker_s_not_the_client_s() -> None:
    async with serving(worker_rtt_ms=400) as client:
        clock = asyncio.get_running_loop().time
        started = clock()
        await client.get("health")
        assert clock() - started < 0.4
        await Worker(client).ping()
        assert clock() - started >= 0.4


async def running(client: Client) -> tuple[Worker, str]:
    job_id, worker = await client.run(), Worker(client)
    await worker.take()
    return worker, job_id


async def test_a_status_fault_answers_its_code_and_does_nothing() -> None:
    async with serving() as client:
        worker, job_id = await running(client)
        client.platform.faults.add("status", "job-done", status=503, times=1)
        assert (await worker.done(job_id, output=1)).status == 503
        assert (await client.status(job_id))["status"] == "IN_PROGRESS"
        assert (await worker.done(job_id, output=1)).status == 200


@pytest.mark.parametrize(("kind", "state"), [("reset_before", "IN_PROGRESS"), ("reset_after", "COMPLETED")])
async def test_a_reset_comes_before_or_after_acceptance(kind: str, state: str) -> None:
    async with serving() as client:
        worker, job_id = await running(client)
        client.platform.faults.add(kind, "job-done", times=1)
        with pytest.raises(aiohttp.ClientError):
            await worker.done(job_id, output=1)
        assert (await client.status(job_id))["status"] == state


async def test_a_lost_ping_is_answered_and_not_heard() -> None:
    async with serving() as client:
        heard: list[str] = []
        client.platform.registry.heard_ping = lambda worker, _: heard.append(worker.id)  # type: ignore[method-assign]
        client.platform.faults.add("ignore", "ping", times=1)
        assert (await Worker(client).ping()).status == 200
        assert heard == []
        assert (await Worker(client).ping()).status == 200
        assert heard == ["pod-1"]


async def test_a_held_call_is_cut_in_the_end() -> None:
    async with serving() as client:
        client.platform.faults.add("hold", "job-take", seconds=0.05)
        with pytest.raises(aiohttp.ClientError):
            await Worker(client).take()


async def test_a_delay_only_delays() -> None:
    async with serving() as client:
        worker, job_id = await running(client)
        client.platform.faults.add("delay", "job-done", seconds=0.1)
        started = asyncio.get_running_loop().time()
        await worker.done(job_id, output=1)
        assert asyncio.get_running_loop().time() - started >= 0.1
        assert (await client.status(job_id))["status"] == "COMPLETED"


async def test_a_repeated_stream_post_shows_the_chunk_twice() -> None:
    async with serving() as client:
        worker, job_id = await running(client)
        client.platform.faults.add("repeat", "job-stream", times=1)
        await worker.stream(job_id, "x")
        assert len((await client.get(f"stream/{job_id}")).json["stream"]) == 2


async def test_a_redelivered_job_is_handed_out_twice() -> None:
    async with serving() as client:
        job_id, worker = await client.run(), Worker(client)
        client.platform.faults.add("redeliver", "job-take", times=1)
        assert [(await worker.take())["id"] for _ in range(2)] == [job_id, job_id]
        assert [(await worker.done(job_id, output=n)).status for n in range(2)] == [200, 200]
        assert (await client.status(job_id))["output"] == 0
        assert client.platform.queue.counts["duplicate"] == 1


async def test_faults_strike_clients_too() -> None:
    async with serving() as client:
        client.platform.faults.add("status", "run", status=429, times=1)
        assert (await client.post("run", {"input": 1})).status == 429
        assert json.loads((await client.post("run", {"input": 1})).body)["status"] == "IN_QUEUE"
