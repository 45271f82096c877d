"""The benchmark over the wire: against a scripted OpenAI server, and the local platform with the real SDK."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from aiohttp import web

from worker_vllm.bench.load import Endpoint, Offer, drive
from worker_vllm.bench.report import Report
from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.workload import Workload
from worker_vllm.cli import bench

_WORKER = Path(__file__).parent / "workers" / "bench_worker.py"
_WORKLOAD = Workload(requests=2, concurrency=2, max_tokens=3)

Script = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ScriptedServer:
    """An OpenAI server whose answers are a test's function.

    Attributes:
        script: answers each request.
        bodies: what was asked.
    """

    def __init__(self) -> None:
        self.script: Script
        self.bodies: list[dict[str, object]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        return await self.script(request)


@pytest.fixture
async def server() -> AsyncIterator[tuple[ScriptedServer, Endpoint]]:
    scripted = ScriptedServer()
    application = web.Application()
    application.router.add_post("/v1/{route:.*}", scripted.answer)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    yield scripted, Endpoint(openai=f"http://127.0.0.1:{port}/v1", model="m")
    await runner.cleanup()


def _stream(*chunks: str, pause: float = 0.0) -> Script:
    async def script(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk.encode())
            await asyncio.sleep(pause)
        return response

    return script


def _event(**choice: object) -> str:
    return f"data: {json.dumps({'choices': [{'index': 0, **choice}]})}\n\n"


_USAGE = 'data: {"choices": [], "usage": {"completion_tokens": 3}}\n\ndata: [DONE]\n\n'


async def _drive(endpoint: Endpoint, workload: Workload) -> list[RequestTimes]:
    offers = [Offer(index, 0.0, f"prompt {index}") for index in range(workload.requests)]
    return await drive(endpoint, workload, offers, start=time.monotonic(), concurrency=workload.concurrency)


async def test_a_stream_is_timed_chunk_by_chunk(server: tuple[ScriptedServer, Endpoint]) -> None:
    scripted, endpoint = server
    scripted.script = _stream(_event(text="a"), _event(text="b"), _event(text="c"), _USAGE, pause=0.05)
    for times in await _drive(endpoint, _WORKLOAD):
        assert times.error is None and times.tokens == 3
        assert times.chunks == 4
        assert len(times.gaps) == 2 and min(times.gaps) > 0.04
        assert times.first is not None and times.sent < times.first < times.last


async def test_a_chats_role_event_is_not_its_first_token(server: tuple[ScriptedServer, Endpoint]) -> None:
    scripted, endpoint = server
    role = _event(delta={"role": "assistant", "content": ""})
    scripted.script = _stream(role, _event(delta={"content": "a"}), _USAGE, pause=0.1)
    times = (await _drive(endpoint, replace(_WORKLOAD, route="chat", requests=1)))[0]
    assert times.first is not None and times.first - times.sent > 0.09
    assert "messages" in scripted.bodies[0]


async def test_tokens_are_counted_by_events_where_the_usage_is_missing(
    server: tuple[ScriptedServer, Endpoint],
) -> None:
    scripted, endpoint = server
    scripted.script = _stream(_event(text="a") + _event(text="b"), _event(text="c"), "data: [DONE]\n\n")
    assert [times.tokens for times in await _drive(endpoint, _WORKLOAD)] == [3, 3]


async def test_a_plain_answer_is_timed_as_a_whole(server: tuple[ScriptedServer, Endpoint]) -> None:
    scripted, endpoint = server

    async def script(request: web.Request) -> web.StreamResponse:
        return web.json_response({"choices": [], "usage": {"completion_tokens": 3}})

    scripted.script = script
    times = (await _drive(endpoint, replace(_WORKLOAD, streamed=False)))[0]
    assert (times.error, times.tokens, times.first) == (None, 3, None)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_refusal_is_a_failed_request_with_its_reason(
    server: tuple[ScriptedServer, Endpoint], streamed: bool
) -> None:
    scripted, endpoint = server

    async def script(request: web.Request) -> web.StreamResponse:
        return web.json_response({"error": {"message": "no such model"}}, status=404)

    scripted.script = script
    for times in await _drive(endpoint, replace(_WORKLOAD, streamed=streamed)):
        assert times.error is not None and "HTTP 404" in times.error and "no such model" in times.error


async def test_a_stream_that_ends_in_an_error_event_is_a_failed_request(
    server: tuple[ScriptedServer, Endpoint],
) -> None:
    scripted, endpoint = server
    scripted.script = _stream(_event(text="a"), 'data: {"error": {"message": "engine dead"}}\n\n')
    assert "engine dead" in str((await _drive(endpoint, _WORKLOAD))[0].error)


async def test_a_server_that_is_not_there_is_a_failed_request() -> None:
    times = await _drive(Endpoint(openai="http://127.0.0.1:9/v1"), _WORKLOAD)
    assert [one.error is None for one in times] == [False, False]


async def test_native_jobs_need_a_runpod_endpoint(server: tuple[ScriptedServer, Endpoint]) -> None:
    _, endpoint = server
    with pytest.raises(ValueError, match="native jobs need a RunPod endpoint"):
        await _drive(endpoint, replace(_WORKLOAD, route="native"))


def test_any_worker_command_is_measured_through_the_platform(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every route and mode, with the real SDK, from the command line to the files."""
    command = shlex.join([sys.executable, str(_WORKER), "0.01"])
    exit_code = _bench(
        *("--target", f"fake=worker:{command}", "--model", "nothing", "--logs", str(tmp_path / "logs")),
        *("--route", "completions,native", "--mode", "streamed,plain", "--concurrency", "3", "--rounds", "1"),
        *("--requests", "12", "--max-tokens", "5", "--poll-ms", "10"),
        *("--rtt-ms", "2", "--client-processes", "2", "--no-warm-up"),
        *("--json", str(tmp_path / "report.json"), "--svg", str(tmp_path / "report.svg")),
        *("--require", "fake/fake>=1"),
    )
    shown = capsys.readouterr().out
    assert exit_code == 0, shown
    report = Report.from_json((tmp_path / "report.json").read_text(encoding="utf-8"))
    streamed = report.runs_of("fake", "completions streamed 3")[0]
    assert (streamed.load.failed, streamed.load.tokens) == (0, 60)
    # The fake posts each token by itself, then usage and end together.
    assert streamed.load.chunks_per_request == 6
    assert streamed.usage is not None and streamed.usage.frontend_cpu_seconds > 0
    assert {run.load.tokens for run in report.runs} == {60}
    native = report.runs_of("fake", "native plain 3")[0]
    assert native.load.queue.largest is not None
    assert report.starts[0].phases == (("fake engine", 0.1),)
    assert 0 < report.starts[0].ready_seconds <= report.starts[0].first_token_seconds
    assert "completions, streamed: 12 requests in one burst" in shown
    assert (tmp_path / "report.svg").read_text(encoding="utf-8").startswith("<svg")


def test_a_worker_that_cannot_start_is_told_of_with_its_own_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = shlex.join([sys.executable, "-c", "import sys; sys.exit('the weights are missing')"])
    exit_code = _bench("--target", f"broken=worker:{command}", "--model", "m", "--logs", str(tmp_path))
    assert exit_code == 1
    assert "the weights are missing" in capsys.readouterr().out


def test_a_benchmark_that_is_told_to_end_leaves_no_process(tmp_path: Path) -> None:
    command = shlex.join([sys.executable, str(_WORKER)])
    arguments = [
        "--target",
        f"fake=worker:{command}",
        "--model",
        "m",
        "--rounds",
        "1000",
        "--logs",
        str(tmp_path),
    ]
    source = str(Path(bench.__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-m", "worker_vllm", "bench", *arguments],
        env={**os.environ, "PYTHONPATH": source},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        next(line for line in process.stdout if line.startswith("round 1,"))
        family = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        assert process.wait(30) == 130
    finally:
        process.kill()
        process.stdout.close()
    assert len(family) >= 3  # client, platform, worker
    assert not psutil.wait_procs(family, timeout=5)[1]


def _bench(*given: str) -> int:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return bench.run(parser.parse_args(["bench", *given]), os.environ)
