"""The platform's worker side, as small as it can be and under the test's full control.

It runs in a thread of its own; its methods may be called from the test's thread. Everything that the
worker sends is recorded in order.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

ROOT = Path(__file__).parents[2]
SCRIPTED_WORKER = "tests/contract/scripted_worker.py"
WORKER_ID = "pod-1"


@dataclass(frozen=True)
class Post:
    """One post of the worker: kind is "stream" or "done"."""

    kind: str
    job_id: str
    body: dict[str, Any]
    query: dict[str, str]
    at: float


@dataclass
class Platform:
    """Offers jobs and records what comes back.

    Attributes:
        post_delay: seconds that each post is held before it is answered.
        post_status: what a post is answered with: called with each post, a status or None for "cut the
        connection". hold_seconds: how long an empty take poll is held.
    """

    hold_seconds: float = 20.0
    post_delay: float = 0.0
    post_status: Callable[[Post], int | None] = lambda _: 200
    posts: list[Post] = field(default_factory=list)
    takes: list[dict[str, Any]] = field(default_factory=list)
    pings: list[tuple[float, str | None]] = field(default_factory=list)
    authorizations: set[str | None] = field(default_factory=set)
    port: int = 0

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self.worker: Worker | None = None
        self._offered: list[dict[str, Any]] = []
        self._stops: list[str] = []
        self._changed = asyncio.Event()
        self._arrived = threading.Condition()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def start(self) -> None:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result()

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def offer(self, *jobs: dict[str, Any]) -> None:
        """Hand these jobs to whoever polls."""
        self._loop.call_soon_threadsafe(self._add, self._offered, jobs)

    def cancel(self, *job_ids: str) -> None:
        """Send these ids down the stop channel."""
        self._loop.call_soon_threadsafe(self._add, self._stops, job_ids)

    def wait_for(self, happened: Callable[[], Any], seconds: float = 20.0) -> Any:
        """Wait until `happened()` is true, and return it; not long for a worker that has ended."""
        with self._arrived:
            deadline = time.monotonic() + seconds
            ended_by = 0.0
            while not (found := happened()):
                if self.worker and self.worker.process.poll() is not None:
                    deadline = min(deadline, ended_by := ended_by or time.monotonic() + 5)
                left = deadline - time.monotonic()
                assert left > 0, (
                    f"it did not happen in time; the worker's log:\n{self.worker and self.worker.log}"
                )
                self._arrived.wait(min(left, 0.05))
            return found

    def done(self, job_id: str, seconds: float = 20.0) -> dict[str, Any]:
        """Wait for a job's final result, and return it."""
        return self.wait_for(lambda: self._bodies("done", job_id), seconds)[0]

    def streamed(self, job_id: str) -> list[Any]:
        """The chunks posted for a job so far."""
        return [body["output"] for body in self._bodies("stream", job_id)]

    def _bodies(self, kind: str, job_id: str) -> list[dict[str, Any]]:
        return [post.body for post in self.posts if post.kind == kind and post.job_id == job_id]

    def environment(self) -> dict[str, str]:
        """What RunPod sets on its workers."""
        base = f"http://127.0.0.1:{self.port}/v2/ep1"
        return {
            "RUNPOD_POD_ID": WORKER_ID,
            "RUNPOD_AI_API_KEY": "the-platforms-key",
            "RUNPOD_PING_INTERVAL": "1000",
            "RUNPOD_WEBHOOK_GET_JOB": f"{base}/job-take/$ID?gpu=x",
            "RUNPOD_WEBHOOK_POST_OUTPUT": f"{base}/job-done/$RUNPOD_POD_ID/$ID?gpu=x",
            "RUNPOD_WEBHOOK_POST_STREAM": f"{base}/job-stream/$RUNPOD_POD_ID/$ID?gpu=x",
            "RUNPOD_WEBHOOK_PING": f"{base}/ping/$RUNPOD_POD_ID?gpu=x",
        }

    async def _serve(self) -> None:
        app = web.Application(client_max_size=64 * 1024**2)
        app.router.add_get("/v2/ep1/job-take/{worker}", self._take)
        app.router.add_get(
            "/v2/ep1/job-take-batch/{worker}", self._take
        )  # {worker} swallows a "&…" without "?"
        app.router.add_get("/v2/ep1/job-stop/{worker}", self._stop_channel)
        app.router.add_get("/v2/ep1/ping/{worker}", self._ping)
        app.router.add_post("/v2/ep1/job-{kind}/{worker}/{job}", self._post)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _take(self, request: web.Request) -> web.Response:
        self.authorizations.add(request.headers.get("Authorization"))
        batch = re.search(r"batch_size=(\d+)", request.path_qs)
        wanted = int(batch[1]) if batch else 1
        taken = {"wanted": wanted, "at": time.time(), "given": 0, "left": False}
        self.takes.append(taken)
        try:
            await self._wait_for(self._offered)
        except asyncio.CancelledError:
            taken["left"] = True
            raise
        jobs, self._offered[:] = self._offered[:wanted], self._offered[wanted:]
        taken["given"] = len(jobs)
        if not jobs:
            return web.Response(status=204)
        return web.json_response(jobs if "job-take-batch" in request.path else jobs[0])

    async def _stop_channel(self, request: web.Request) -> web.Response:
        await self._wait_for(self._stops)
        ids, self._stops[:] = list(self._stops), []
        return web.json_response({"jobsToStop": ids}) if ids else web.Response(status=204)

    async def _ping(self, request: web.Request) -> web.Response:
        self.pings.append((time.time(), request.query.get("job_id")))
        return web.Response()

    async def _post(self, request: web.Request) -> web.Response:
        at = time.time()
        body = json.loads(await request.text())
        post = Post(request.match_info["kind"], request.match_info["job"], body, dict(request.query), at)
        await asyncio.sleep(self.post_delay)
        status = self.post_status(post)
        if status is None:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if status < 300:
            self.posts.append(post)
            with self._arrived:
                self._arrived.notify_all()
        return web.Response(status=status)

    def _add(self, where: list[Any], what: Any) -> None:
        where.extend(what)
        self._changed.set()

    async def _wait_for(self, where: list[Any]) -> None:
        deadline = self._loop.time() + self.hold_seconds
        while not where and (left := deadline - self._loop.time()) > 0:
            self._changed.clear()
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                return


@dataclass
class Worker:
    """A child process with the scripted worker.

    Attributes:
        events: what its engines wrote down, so far.
    """

    process: subprocess.Popen[bytes]
    directory: Path

    @property
    def events(self) -> list[dict[str, Any]]:
        path = self.directory / "events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def log(self) -> str:
        return (self.directory / "log").read_text()

    def ended(self, job_id: str) -> dict[str, Any] | None:
        """The engine's note that a job's generator has run its `finally`, once it has."""
        found = [event for event in self.events if event["event"] == "ended" and event["id"] == job_id]
        return found[0] if found else None

    def began(self, job_id: str) -> bool:
        return any(event["event"] == "began" and event.get("id") == job_id for event in self.events)

    def children(self) -> list[int]:
        """Process ids of its children (the ping process)."""
        return _children(self.process.pid)

    def descendants(self) -> list[int]:
        """Process ids of everything below it, parents first."""
        return _descendants(self.process.pid)

    def kill_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(word) for children in tasks for word in children.read_text().split()]


def _descendants(pid: int) -> list[int]:
    return [one for child in _children(pid) for one in (child, *_descendants(child))]


def is_running(pid: int) -> bool:
    """Whether the process lives; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


@contextmanager
def running_worker(
    platform: Platform, directory: Path, *, script: str = SCRIPTED_WORKER, **environment: str
) -> Iterator[Worker]:
    """A worker in a process group of its own, which is killed at the end; scripted unless another is
    named."""
    directory.mkdir(parents=True, exist_ok=True)
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(directory),
        "PYTHONPATH": str(ROOT / "src"),
        "SCRIPT_EVENTS": str(directory / "events"),
        **platform.environment(),
        **environment,
    }
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, str(ROOT / script)],
            cwd=directory,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    worker = platform.worker = Worker(process, directory)
    try:
        yield worker
    finally:
        worker.kill_group()


@contextmanager
def serving(directory: Path, **environment: str) -> Iterator[tuple[Platform, Worker]]:
    """A platform and a scripted worker that asks it for jobs; both end with the block."""
    platform = Platform()
    platform.start()
    try:
        with running_worker(platform, directory, **environment) as worker:
            platform.wait_for(lambda: platform.takes, 60)
            yield platform, worker
    finally:
        platform.stop()


def script(*steps: Any) -> str:
    """A job's prompt for the scripted engines."""
    return json.dumps(steps)


def native(job_id: str, *steps: Any, **more: Any) -> dict[str, Any]:
    """A native streaming job."""
    return {"id": job_id, "input": {"prompt": script(*steps), "stream": True}, **more}


def chat(job_id: str, *steps: Any, **more: Any) -> dict[str, Any]:
    """A streaming job of the OpenAI route."""
    body = {"messages": [{"role": "user", "content": script(*steps)}], "stream": True}
    return {"id": job_id, "input": {"openai_route": "/v1/chat/completions", "openai_input": body}, **more}
