"""The worker as it is, with scripted engines in the place of vLLM's: run as a child by the contract tests.

A job's prompt (or first message) is a JSON list of steps, run in order:

    ["yield", chunk]            ["sleep", seconds]          ["stuck"]  until it is closed
    ["fail", class, message]    a WorkerError subclass      ["boom"]   an exception nobody foresaw
    ["die"]                     the engine is dead from now on; nobody is told by this job
    ["block", seconds]          the event loop stands still
    ["tokens", count, seconds]  so many, one every so many seconds, grouped to the platform's pace

Environment: SCRIPT_EVENTS (a file that gets a line of JSON per event), SCRIPT_READY_SECONDS,
SCRIPT_READY_FAILS, SCRIPT_START_SECONDS, SCRIPT_START_FAILS, SCRIPT_STOP_HANGS, SCRIPT_STOCK_SDK,
SCRIPT_ANSWERS.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from contextlib import aclosing
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


class ScriptedHost:
    capacity = 300
    errored = False
    unfinished_requests = 0
    step_count = 0

    def has_begun(self, record: Any) -> bool:
        return False

    async def cut_short(self, record: Any) -> bool:
        return False

    async def ready(self) -> None:
        await asyncio.sleep(float(os.environ.get("SCRIPT_READY_SECONDS", "0")))
        if reason := os.environ.get("SCRIPT_READY_FAILS"):
            raise errors.EngineStartError(reason)
        note("ready")

    async def close(self) -> None:
        await asyncio.sleep(0)
        note("host closed")

    def stop(self) -> None:
        note("host stopped")
        while "SCRIPT_STOP_HANGS" in os.environ:
            time.sleep(1)


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
                self._host.step_count += 1
                if verb == "yield":
                    yield rest[0]
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
                    self._host.errored = True
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
