"""Workers as processes of the platform: started, restarted, recycled, given up, and all gone in the end."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.contract.emulator_bench import QUICK, Client, eventually
from worker_vllm.emulator import processes
from worker_vllm.emulator.policy import Policy
from worker_vllm.emulator.server import Platform
from worker_vllm.emulator.worker_pool import WorkerFailedError, WorkerPool
from worker_vllm.emulator.worker_process import WorkerProcess

TINY = (sys.executable, str(Path(__file__).parent / "workers" / "tiny_worker.py"))


class Running:
    """A platform with workers, and a client of it."""

    def __init__(self, client: Client, pool: WorkerPool, lines: list[str]) -> None:
        self.client = client
        self.pool = pool
        self.lines = lines

    async def sync(self, job_input: Any) -> dict[str, Any]:
        return (await self.client.post("runsync?wait=10000", {"input": job_input})).json


@asynccontextmanager
async def workers(
    count: int = 1,
    *,
    environment: dict[str, str] | None = None,
    command: tuple[str, ...] = TINY,
    **choices: Any,
) -> AsyncIterator[Running]:
    """Workers that are ready."""
    policy = dataclasses.replace(
        Policy(), **{**QUICK, "restart_delay_s": 0.05, "worker_grace_s": 3.0, **choices}
    )
    lines: list[str] = []
    async with Platform(policy) as platform, aiohttp.ClientSession() as session:
        pool = WorkerPool(
            platform,
            command,
            {**os.environ, **(environment or {})},
            count=count,
            on_line=lambda worker_id, line: lines.append(f"{worker_id}: {line}"),
        )
        async with pool:
            await pool.ready()
            yield Running(Client(platform, session), pool, lines)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def is_there(name: str) -> bool:
    return Path(name).exists()


def mark_of(pid: int) -> str:
    """The mark that a worker and its descendants carry."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
    return dict(entry.split("=", 1) for entry in entries if entry)[processes.MARKER]


async def test_a_worker_runs_in_a_fresh_directory_and_session_and_leaves_neither() -> None:
    async with workers() as running:
        output = (await running.sync({"x": 1}))["output"]
        assert output["input"] == {"x": 1}
        assert output["cwd"] != str(Path.cwd())
        assert is_there(output["cwd"])
        assert os.getsid(output["pid"]) == output["pid"]
    assert not is_there(output["cwd"])
    assert not alive(output["pid"])


async def test_two_workers_share_the_jobs() -> None:
    async with workers(2) as running:
        assert (await running.client.get("health")).json["workers"]["idle"] == 2
        results = await asyncio.gather(*(running.sync({"n": n}) for n in range(20)))
        assert [result["output"]["input"]["n"] for result in results] == list(range(20))
        assert {result["workerId"] for result in results} == {"worker-0", "worker-1"}


async def test_a_worker_that_cannot_start_is_reported_with_its_code_and_last_line() -> None:
    with pytest.raises(WorkerFailedError) as caught:
        async with workers(environment={"TINY_FAILS": "3"}):
            pytest.fail("it came into service")
    assert (caught.value.exit_code, caught.value.reason) == (3, "tiny worker cannot start: told to fail")


async def test_a_worker_that_ends_with_0_before_it_was_ready_has_failed() -> None:
    with pytest.raises(WorkerFailedError) as caught:
        async with workers(command=(sys.executable, "-c", "pass")):
            pytest.fail("it came into service")
    assert caught.value.exit_code == 1
    assert caught.value.reason == "worker-0 ended with exit code 0 before it was ready"


async def test_a_command_that_cannot_be_executed_is_named() -> None:
    with pytest.raises(WorkerFailedError) as caught:
        async with workers(command=("/nowhere/worker",)):
            pytest.fail("it came into service")
    assert (caught.value.exit_code, caught.value.reason) == (
        127,
        "cannot execute /nowhere/worker: No such file or directory",
    )


async def test_a_dead_worker_is_started_again_and_its_job_fails_after_one_retry() -> None:
    async with workers() as running:
        job_id = await running.client.run({"exit": 7})
        job = await running.client.until(job_id, "FAILED")
        assert (job["error"], job["retries"]) == ("job timed out after 1 retries", 1)
        assert (await running.sync({"x": 2}))["status"] == "COMPLETED"
        assert running.lines.count("worker-0: worker summary: told to crash") == 2


async def test_a_killed_worker_s_job_is_done_by_the_next() -> None:
    async with workers() as running:
        job_id = await running.client.run({"hang": True})
        await running.client.until(job_id, "IN_PROGRESS")
        job = running.client.platform.queue.get(job_id)
        job.submission.job_input.pop("hang")
        pid = running.pool.pid("worker-0")
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        found = await running.client.until(job_id, "COMPLETED")
        assert found["retries"] == 1
        assert found["output"]["pid"] != pid


async def test_a_worker_that_keeps_dying_is_given_up() -> None:
    async with workers(restart_limit=1, restart_delay_s=0.01) as running:
        await running.client.run({"exit": 7})
        with pytest.raises(WorkerFailedError) as caught:
            await asyncio.wait_for(running.pool.failed, 10)
        assert caught.value.exit_code == 7
        assert (await running.client.get("health")).json["workers"]["unhealthy"] == 1


async def test_stop_pod_restarts_the_worker() -> None:
    async with workers() as running:
        first = (await running.sync({"stop_pod": True}))["output"]["pid"]
        second = (await running.sync({}))["output"]["pid"]
        assert first != second
        assert not alive(first)


async def test_a_worker_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    async with workers(worker_grace_s=0.3) as running:
        job_id = await running.client.run({"hang": True})
        await running.client.until(job_id, "IN_PROGRESS")
        await asyncio.sleep(0.1)  # until it has taken the signal out of force
        pid = running.pool.pid("worker-0")
        assert pid is not None
        started = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - started > 0.2
    assert not alive(pid)


async def test_what_a_worker_started_ends_with_it_even_in_a_session_of_its_own() -> None:
    async with workers(environment={"TINY_GRANDCHILD": "1"}) as running:
        pid = running.pool.pid("worker-0")
        assert pid is not None
        family = processes.marked_processes(mark_of(pid))
        assert len(family) == 2
        os.kill(pid, signal.SIGKILL)

        async def all_gone() -> bool:
            return not any(alive(member) for member in family)

        await eventually(all_gone)

        async def noted() -> bool:
            return bool(running.pool.exits)

        await eventually(noted)
        (exit,) = running.pool.exits
        assert (exit.worker_id, exit.code, exit.left) == ("worker-0", 137, ("sleep 600",))


async def test_a_killed_worker_s_shared_memory_is_still_cleaned_up() -> None:
    """By Python's resource tracker, which therefore must not be killed along with the rest."""
    name = f"tiny-{secrets.token_hex(4)}"
    async with workers(environment={"TINY_SHARED_MEMORY": name}, restart_limit=0) as running:
        assert is_there(f"/dev/shm/{name}")
        os.kill(running.pool.pid("worker-0") or 0, signal.SIGKILL)
        with pytest.raises(WorkerFailedError):
            await asyncio.wait_for(running.pool.failed, 10)
        assert not is_there(f"/dev/shm/{name}")


async def test_stopping_before_the_worker_is_up_leaves_nothing() -> None:
    policy = dataclasses.replace(Policy(), worker_grace_s=1.0)
    async with Platform(policy) as platform:
        pool = WorkerPool(platform, TINY, os.environ, on_line=lambda *_: None)
        async with pool:
            pass
        pid = pool.pid("worker-0")
        assert pid is None or not alive(pid)


async def test_output_is_relayed_line_by_line_whatever_it_holds() -> None:
    script = (
        "import sys\n"
        "sys.stdout.buffer.write(b'one\\rtwo\\r\\nb\\xffd\\n' + b'x' * 200_000 + b'\\n\\nlast')\n"
        "sys.stdout.flush()\n"
        "sys.exit(5)\n"
    )
    lines: list[str] = []
    process = WorkerProcess((sys.executable, "-c", script), dict(os.environ), lines.append)
    assert await process.run() == 5
    assert lines[:2] == ["two", "b\ufffdd"]
    assert sum(line.count("x") for line in lines) == 200_000
    assert process.last_line == "last"


async def test_a_death_by_signal_has_a_shell_s_code() -> None:
    script = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    process = WorkerProcess((sys.executable, "-c", script), dict(os.environ), lambda line: None)
    assert await process.run() == 137
