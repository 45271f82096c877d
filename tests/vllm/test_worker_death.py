"""The whole worker with the real engine: paused and resumed it goes on, and it does not outlive its
engine."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models
from tests.contract.scripted_platform import Platform, Worker, is_running, running_worker

pytestmark = pytest.mark.engine

STALL_SECONDS = 3
QUEUED_BATCHES = 8
LONG = {"max_tokens": 1800, "ignore_eos": True, "temperature": 0}


def jobs(suffix: str) -> list[dict]:
    """A streamed chat, a streamed native job and a plain one, each of which takes a while."""
    body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, **LONG}
    return [
        {"id": f"chat-{suffix}", "input": {"openai_route": "/v1/chat/completions", "openai_input": body}},
        {"id": f"native-{suffix}", "input": {"prompt": "hi", "stream": True, "sampling_params": LONG}},
        {"id": f"plain-{suffix}", "input": {"prompt": "hi", "sampling_params": LONG}},
    ]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[Platform, Worker]]:
    platform = Platform(post_delay=0.1)
    platform.start()
    environment = {"MODEL_NAME": str(models.tiny()), "ENGINE_STALL_S": str(STALL_SECONDS)}
    environment |= {"MAX_NUM_SEQS": "3", "MAX_CONCURRENCY": "32"}
    with running_worker(platform, tmp_path, script="src/handler.py", **environment) as worker:
        platform.wait_for(lambda: platform.takes, 280)
        yield platform, worker
    platform.stop()


def offer(platform: Platform, suffix: str) -> list[str]:
    """Offer the jobs, and return their ids, the streams' first."""
    offered = jobs(suffix)
    platform.offer(*offered)
    return [job["id"] for job in offered]


def begin(platform: Platform, suffix: str) -> list[str]:
    """Offer the jobs and wait until both streams have come some way."""
    ids = offer(platform, suffix)
    platform.wait_for(lambda: all(len(platform.streamed(job_id)) > 1 for job_id in ids[:2]), 60)
    return ids


def begin_and_kill(platform: Platform, engine: int) -> list[str]:
    """Kill the engine under jobs, and return those that have not ended before. It has many, and runs three at
    a time: on a busy machine it can be far ahead of whoever looks."""
    ids = [one for batch in range(QUEUED_BATCHES) for one in offer(platform, f"orphaned-{batch}")]
    platform.wait_for(lambda: any(len(platform.streamed(job_id)) > 1 for job_id in ids), 60)
    os.kill(engine, signal.SIGSTOP)
    time.sleep(0.5)
    ended = {post.job_id for post in platform.posts if post.kind == "done"}
    os.kill(engine, signal.SIGKILL)
    return [job_id for job_id in ids if job_id not in ended]


@pytest.mark.timeout(600)
def test_a_pause_of_everything_passes_and_the_engines_death_does_not(
    running: tuple[Platform, Worker],
) -> None:
    platform, worker = running
    processes = worker.descendants()
    (engine,) = [pid for pid in processes if "EngineCore" in command_of(pid)]
    # forked, it has this process's memory at the same addresses; started anew, it would import vLLM again
    assert heap_of(engine) == heap_of(worker.process.pid)

    ids = begin(platform, "paused")
    for pid in (worker.process.pid, *processes):
        os.kill(pid, signal.SIGSTOP)
    time.sleep(STALL_SECONDS + 1)
    for pid in (*reversed(processes), worker.process.pid):
        os.kill(pid, signal.SIGCONT)
    for job_id in ids:
        result = platform.done(job_id, 120)
        assert "output" in result, f"{job_id}: {result}\nthe worker's log:\n{worker.log}"
        output = result["output"]
        assert "length" in json.dumps(output[-1] if job_id.startswith("native") else output)
    assert worker.process.poll() is None

    ids = begin_and_kill(platform, engine)
    assert len(ids) > 2
    died_at = time.monotonic()
    for job_id in ids:
        error = json.loads(platform.done(job_id)["error"])
        assert (error["type"], error["code"]) == ("EngineDeadError", 500)
    failed_after = time.monotonic() - died_at
    assert worker.process.wait(15) == 4
    exited_after = time.monotonic() - died_at
    print(f"jobs failed after {failed_after:.1f} s, the process exited after {exited_after:.1f} s")
    assert failed_after < 5
    assert exited_after < 10
    platform.wait_for(lambda: not any(is_running(pid) for pid in processes), 10)


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def heap_of(pid: int) -> str:
    maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return next(line.split("-")[0] for line in maps if line.endswith("[heap]"))
