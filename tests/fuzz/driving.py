"""A job through the worker's handler, as the SDK drives it, and what must be true of its end."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.native import vLLMEngine
from worker_vllm.engine.openai import OpenAIvLLMEngine
from worker_vllm.engine.record import JobRecord
from worker_vllm.errors import WorkerError
from worker_vllm.serverless.cancellation import Jobs
from worker_vllm.serverless.handler import make_handler
from worker_vllm.settings import WorkerSettings


class Worker:
    """The handler around `host`; it notes a report of a dead engine."""

    def __init__(self, host: EngineHost, **settings: Any) -> None:
        worker = WorkerSettings(**settings)
        self.jobs = Jobs()
        self.native = vLLMEngine(host, worker)
        self.openai = OpenAIvLLMEngine(host, worker)
        self.request_timeout_seconds: float | None = 60.0
        self.first_token_seconds = None
        self.errors_as_body = False
        self.raw_openai_output = worker.raw_openai_output
        self.reports: list[WorkerError] = []
        self._host = host

    async def ready(self) -> None:
        await self._host.ready()

    def report(self, error: WorkerError) -> None:
        self.reports.append(error)

    def has_begun(self, record: JobRecord) -> bool:
        return self._host.has_begun(record)

    async def cut_short(self, record: JobRecord) -> bool:
        return await self._host.cut_short(record)

    async def run(self, job_input: Any, job_id: Any = "job") -> list[Any]:
        """All that the job yields. A task of its own, as the SDK has it."""

        async def drive() -> list[Any]:
            found = []
            async for chunk in make_handler(self)({"id": job_id, "input": job_input}):
                found.append(chunk)
                if isinstance(chunk, dict) and chunk.get("error"):
                    break
            return found

        return await asyncio.create_task(drive())


@contextmanager
def errors_logged() -> Iterator[list[str]]:
    """What the worker logs as an error in the block; a traceback of a job's is one."""
    lines: list[str] = []

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(self.format(record))

    handler = Lines(logging.ERROR)
    logging.getLogger("worker_vllm").addHandler(handler)
    try:
        yield lines
    finally:
        logging.getLogger("worker_vllm").removeHandler(handler)


async def codes_of(worker: Worker, batch: list[Any]) -> tuple[list[int], list[str]]:
    """Run these jobs at once. The code that each ended with, 200 for an answer, and what was logged as an
    error; `check` holds for each, and none has taken the engine with it."""
    codes = []
    with errors_logged() as lines:
        answers = await asyncio.gather(*(asyncio.wait_for(worker.run(job), 60) for job in batch))
    for job, chunks in zip(batch, answers, strict=True):
        try:
            error = check(chunks)
        except AssertionError as failure:
            raise AssertionError(f"{failure}\nthe job: {job!r}\nthe log: {lines}") from failure
        codes.append(error["code"] if error else 200)
    assert worker.reports == [], batch
    return codes, lines


def error_of(chunks: list[Any]) -> dict[str, Any] | None:
    """The job's error, if it failed."""
    if chunks and isinstance(chunks[-1], dict) and "error" in chunks[-1]:
        error: dict[str, Any] = json.loads(chunks[-1]["error"])
        return error
    return None


def check(chunks: list[Any]) -> dict[str, Any] | None:
    """What holds for every job whatever it asked for; returns its error, if it failed."""
    for chunk in chunks:
        json.dumps(chunk, ensure_ascii=False, allow_nan=False).encode()
    error = error_of(chunks)
    if error is not None:
        assert {"message", "type", "param", "code"} <= error.keys(), error
        assert 400 <= error["code"] < 500, error
        assert error["message"], error
    return error
