"""The worker as it is, with scripted engines in the place of vLLM's: run as a child by the contract tests.

A job's prompt (or first message) is a JSON list of steps, run in order:

    ["yield", chunk]            ["sleep", seconds]          ["stuck"]  until it is closed
    ["fail", class, message]    a WorkerError subclass      ["boom"]   an exception nobody foresaw
    ["die"]                     the engine is dead from now on; nobody is told by this job
    ["block", seconds]          the event loop stands still
    ["tokens", count, seconds]  so many, one every so many seconds, grouped to the platform's pace
    ["step", seconds]           one step of the engine's process, and so many seconds

Environment: SCRIPT_EVENTS (a file that gets a line of JSON per event), SCRIPT_READY_SECONDS,
SCRIPT_READY_FAILS, SCRIPT_START_SECONDS, SCRIPT_START_FAILS, SCRIPT_STOP_HANGS, SCRIPT_STOP_SECONDS,
SCRIPT_STOCK_SDK, SCRIPT_ANSWERS, SCRIPT_ENGINE_PROCESS (the engine is a process, which can be killed or made
to hang).
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import deque
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

from worker_vllm import errors
from worker_vllm.batching import coalesce
from worker_vllm.configuration import Configuration
from worker_vllm.serverless import sdk, start
from worker_vllm.settings import read

EVENTS = Path(os.environ["SCRIPT_EVENTS"])


def note(event: str, **details: Any) -> None:
    with EVENTS.open("a") as file:
        moment = {"at": time.time(), "cpu": time.process_time()}
        file.write(json.dumps({"event": event, **moment, **details}) + "\n")


class EngineProcess:
    """A child that answers each byte with that byte: what the engine's steps are asked of."""

    CODE = "import os\nwhile asked := os.read(0, 4096): os.write(1, asked)"

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", "-c", self.CODE, "EngineCore"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        self._asking: deque[asyncio.Future[None]] = deque()
        self.step_count = 0
        self.dead = False

    def listen(self) -> None:
        assert self._process.stdout is not None
        asyncio.get_running_loop().add_reader(self._process.stdout.fileno(), self._answered)

    async def step(self) -> None:
        """One step; never ends where the engine is dead."""
        assert self._process.stdin is not None
        answered = asyncio.get_running_loop().create_future()
        self._asking.append(answered)
        with suppress(BrokenPipeError):
            self._process.stdin.write(b".")
        await answered

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def _answered(self) -> None:
        assert self._process.stdout is not None
        steps = os.read(self._process.stdout.fileno(), 4096)
        if not steps:
            self.dead = True
            asyncio.get_running_loop().remove_reader(self._process.stdout.fileno())
        self.step_count += len(steps)
        for _ in steps:
            if not (answered := self._asking.popleft()).done():
                answered.set_result(None)


class ScriptedHost:
    capacity = 300
    process: EngineProcess | None = None
    unfinished_requests = 0
    scripted_death = False
    scripted_steps = 0

    @property
    def errored(self) -> bool:
        return self.scripted_death or (self.process is not None and self.process.dead)

    @property
    def step_count(self) -> int:
        return self.scripted_steps + (self.process.step_count if self.process else 0)

    def has_begun(self, record: Any) -> bool:
        return False

    async def cut_short(self, record: Any) -> bool:
        return False

    async def ready(self) -> None:
        await asyncio.sleep(float(os.environ.get("SCRIPT_READY_SECONDS", "0")))
        if reason := os.environ.get("SCRIPT_READY_FAILS"):
            raise errors.EngineStartError(reason)
        if "SCRIPT_ENGINE_PROCESS" in os.environ:
            self.process = EngineProcess()
            self.process.listen()
        note("ready")

    async def close(self) -> None:
        await asyncio.sleep(0)
        note("host closed")

    def stop(self) -> None:
        note("host stopped")
        time.sleep(float(os.environ.get("SCRIPT_STOP_SECONDS", "0")))
        while "SCRIPT_STOP_HANGS" in os.environ:
            time.sleep(1)
        if self.process is not None:
            self.process.stop()


class ScriptedEngine:
    def __init__(self, host: ScriptedHost) -> None:
        self._host = host

    async def generate(self, job: Any, request_id: str) -> Any:
        text = job.prompts[0] if job.kind == "prompt" else job.body["messages"][0]["content"]
        note("began", id=request_id)
        how = "closed"
        self._host.unfinished_requests += 1
        try:
            for verb, *rest in json.loads(text):
                self._host.scripted_steps += verb != "step"
                if verb == "yield":
                    self._host.unfinished_requests -= 1  # an engine works on while its consumer holds a chunk
                    try:
                        yield rest[0]
                    finally:
                        self._host.unfinished_requests += 1
                elif verb == "sleep":
                    await asyncio.sleep(rest[0])
                elif verb == "block":
                    time.sleep(rest[0])  # noqa: ASYNC251 - the point of it
                elif verb == "tokens":
                    async with aclosing(paced(*rest)) as batches:
                        async for batch in batches:
                            yield {"tokens": batch}
                elif verb == "stuck":
                    await asyncio.Event().wait()
                elif verb == "fail":
                    raise getattr(errors, rest[0])(rest[1])
                elif verb == "boom":
                    raise ValueError("secret-of-the-worker in /root/path")
                elif verb == "die":
                    self._host.scripted_death = True
                elif verb == "step" and self._host.process is not None:
                    await self._host.process.step()
                    await asyncio.sleep(rest[0])
            how = "finished"
        except asyncio.CancelledError:
            how = "cancelled"
            raise
        finally:
            self._host.unfinished_requests -= 1
            note("ended", id=request_id, how=how)


def paced(count: int, seconds: float) -> Any:
    async def tokens() -> Any:
        for number in range(count):
            await asyncio.sleep(seconds)
            yield number

    return coalesce(tokens(), size=None, weigh=lambda _: 1, cost=lambda _: 1, max_bytes=1000)


def start_engines(_: Configuration, environ: object) -> start.Engines:
    note("starting")
    time.sleep(float(os.environ.get("SCRIPT_START_SECONDS", "0")))
    if reason := os.environ.get("SCRIPT_START_FAILS"):
        raise errors.EngineStartError(reason)
    host = ScriptedHost()
    return start.Engines(host, ScriptedEngine(host), ScriptedEngine(host))


def main() -> int:
    worker = read(os.environ)
    configuration = Configuration(
        worker=worker.settings,
        worker_effective=worker.effective,
        engine={},
        frontend={},
        served_model_names=("scripted",),
        warnings=(),
    )
    if "SCRIPT_STOCK_SDK" in os.environ:
        sdk.TESTED_VERSIONS = frozenset()  # type: ignore[misc]
    return start.run(configuration, os.environ, start_engines, bring=lambda configuration, *_: configuration)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except errors.StartupFailure as failure:
        if "SCRIPT_ANSWERS" in os.environ:
            sys.exit(start.answer(failure, os.environ))
        print(f"cannot start: {failure}", file=sys.stderr)
        sys.exit(failure.exit_code)
