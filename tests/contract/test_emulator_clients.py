"""The clients that users have, against `worker-vllm local` with the real SDK behind it."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import requests

from tests.contract.emulator_process import LocalProcess, descendants, living, local_process
from worker_vllm.cli import demo

NODE = Path(__file__).parent / "node"
NODE_CACHE = Path(__file__).parents[2] / ".cache" / "npm-openai"
ANSWER = "Paris 🗼 巴黎"
QUESTION: list[Any] = [{"role": "user", "content": "the capital of France?"}]
KEY = "the-key"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalProcess]:
    """A platform with one SDK worker. At its end, by Ctrl-C, nothing that it started is left."""
    log = tmp_path_factory.mktemp("local") / "stderr.log"
    with local_process("--api-key", KEY, worker="echo_worker.py", log=log) as running:
        family = descendants(running.process.pid)
        assert len(family) >= 2, "the worker and its pinger"
        yield running
        assert running.stop(signal.SIGINT) == 0
        assert living(family) == set()


@pytest.fixture
def client(local: LocalProcess) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{local.url}/openai/v1", api_key=KEY, max_retries=0) as found:
        yield found


@pytest.fixture
def endpoint(local: LocalProcess, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import runpod

    base, _, endpoint_id = local.url.rpartition("/")
    monkeypatch.setattr(runpod, "endpoint_url_base", base)
    found = runpod.Endpoint(endpoint_id, api_key=KEY)
    yield found
    found.rp_client.rp_session.close()


@pytest.fixture
def session(local: LocalProcess) -> Iterator[requests.Session]:
    with requests.Session() as found:
        found.headers["Authorization"] = f"Bearer {KEY}"
        yield found


def run_sync(session: requests.Session, local: LocalProcess, job_input: dict[str, Any]) -> dict[str, Any]:
    return session.post(f"{local.url}/runsync", json={"input": job_input}, timeout=20).json()


# --- OpenAI SDK


def test_openai_lists_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["echo"]


def test_openai_plain_chat(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(model="m", messages=QUESTION)
    assert chat.choices[0].message.content == ANSWER


def test_openai_streamed_chat_arrives_as_it_is_made(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=QUESTION, stream=True, extra_body={"pause_s": 0.2}
    )
    arrivals, text = [], ""
    for chunk in stream:
        arrivals.append(time.monotonic())
        text += chunk.choices[0].delta.content or ""
    assert text == ANSWER
    assert arrivals[-1] - arrivals[0] > 0.4


def test_openai_failed_chat_is_a_500(client: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="m", messages=QUESTION, extra_body={"fail": True})


def test_openai_chat_that_fails_in_mid_stream_ends(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        model="m", messages=QUESTION, stream=True, extra_body={"fail": True}
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == "Par"


def test_openai_wrong_key_is_refused(local: LocalProcess) -> None:
    with (
        openai.OpenAI(base_url=f"{local.url}/openai/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError),
    ):
        client.models.list()


# --- runpod client


def test_runpod_run_sync(endpoint: Any) -> None:
    assert endpoint.run_sync({"input": {"yields": ["a", {"b": 1}]}}) == ["a", {"b": 1}]


def test_runpod_run_then_stream_then_output(endpoint: Any) -> None:
    job = endpoint.run({"input": {"yields": ["a", "b", "é"]}})
    assert list(job.stream()) == ["a", "b", "é"]
    assert job.status() == "COMPLETED"
    assert job.output(timeout=5) == ["a", "b", "é"]


def test_runpod_cancel_stops_the_handler(endpoint: Any, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    job = endpoint.run({"input": {"yields": ["x"] * 100, "pause_s": 0.1, "mark": str(mark)}})
    wait_for(lambda: mark.exists())
    assert job.cancel()["status"] == "CANCELLED"
    wait_for(lambda: mark.read_text() == "started\nstopped\n")
    assert job.status() == "CANCELLED"


def test_runpod_health_and_purge(endpoint: Any) -> None:
    assert endpoint.health()["workers"]["ready"] == 1
    assert endpoint.purge_queue() == {"removed": 0, "status": "completed"}


def test_runpod_wrong_key_is_refused(endpoint: Any) -> None:
    endpoint.rp_client.headers["Authorization"] = "Bearer wrong"
    with pytest.raises(RuntimeError, match="401"):
        endpoint.health()


async def test_runpod_async_client(
    local: LocalProcess, endpoint: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import runpod

    monkeypatch.setattr(runpod, "api_key", KEY)
    async with aiohttp.ClientSession() as http:
        job = await runpod.AsyncioEndpoint("local", http).run({"yields": ["a"]})
        assert await asyncio.wait_for(job.output(timeout=10), 10) == ["a"]
        assert await job.status() == "COMPLETED"


# --- the SDK behind it


def test_an_error_that_the_handler_yields_fails_the_job(
    local: LocalProcess, session: requests.Session
) -> None:
    job = run_sync(session, local, {"yields": ["a"], "error": "no good"})
    assert job.items() >= {"status": "FAILED", "error": "no good", "workerId": "worker-0"}.items()
    assert "output" not in job


def test_progress_updates_are_seen_and_replaced(local: LocalProcess, session: requests.Session) -> None:
    job = session.post(
        f"{local.url}/run", json={"input": {"progress": "half", "yields": ["a"]}}, timeout=5
    ).json()
    seen = set()

    def finished() -> bool:
        status = session.get(f"{local.url}/status/{job['id']}", timeout=5).json()
        seen.add(str(status.get("output")))
        return status["status"] == "COMPLETED"

    wait_for(finished)
    assert {"half", "['a']"} <= seen


def test_jobs_run_side_by_side(local: LocalProcess, session: requests.Session) -> None:
    body = {"input": {"yields": ["x", "y"], "pause_s": 0.5}}
    ids = [session.post(f"{local.url}/run", json=body, timeout=5).json()["id"] for _ in range(4)]
    jobs: list[Any] = []
    for job_id in ids:
        jobs.append(session.get(f"{local.url}/status-sync/{job_id}?wait=10000", timeout=20).json())
    assert [job["output"] for job in jobs] == [["x", "y"]] * 4
    assert max(job["delayTime"] + job["executionTime"] for job in jobs) < 3500, "one after another"


# --- node, and the demonstration


@pytest.mark.skipif(
    shutil.which("node") is None or shutil.which("npm") is None, reason="node is not installed"
)
def test_the_npm_package_openai(local: LocalProcess) -> None:
    install_npm_openai()
    script = shutil.copy(NODE / "chat.mjs", NODE_CACHE / "chat.mjs")
    environ = {**os.environ, "BASE_URL": f"{local.url}/openai/v1", "API_KEY": KEY}
    found = subprocess.run(
        ["node", script], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.splitlines() == ["models echo", f"plain {ANSWER}", f"streamed {ANSWER}"]


def install_npm_openai() -> None:
    """npm ci into .cache, once per lock file."""
    lock = (NODE / "package-lock.json").read_bytes()
    done = NODE_CACHE / "installed-lock.json"
    if done.exists() and done.read_bytes() == lock:
        return
    NODE_CACHE.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE / name, NODE_CACHE / name)
    subprocess.run(["npm", "ci", "--no-audit", "--no-fund"], cwd=NODE_CACHE, check=True, timeout=240)
    done.write_bytes(lock)


def test_the_demonstration_shows_both_answers(
    local: LocalProcess, endpoint: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(demo.KEY_VARIABLE, KEY)
    monkeypatch.setattr("sys.stdin", io.StringIO(demo.GO.decode()))
    assert demo.main(["demo", local.url]) == 0
    text = capsys.readouterr().out
    assert f"< {ANSWER}\n" in text
    assert "< Paris.\n" in text
    assert text.count("first token after") == 2


def wait_for(check: Any, timeout_s: float = 10.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not check():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.05)
