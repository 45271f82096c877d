"""The job handler: one job in, its chunks out, every failure as one coded error at the end.

This is the RunPod edge. Errors are exceptions inside and become `{"error": "<JSON text>"}` here, once;
text, because the SDK applies `str()` to what it finds under `error`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Protocol

from worker_vllm.engine.record import JobRecord, current_record
from worker_vllm.errors import ApplicationError, DeadlineError, InternalError, RequestError, WorkerError
from worker_vllm.job import JobInput
from worker_vllm.job_shape import asks_for_events, asks_for_route, is_large, known_field
from worker_vllm.serverless import log
from worker_vllm.serverless.cancellation import JobLease, Jobs, Limit
from worker_vllm.serverless.error_event import error_event
from worker_vllm.wire import clean

Handler = Callable[[dict[str, Any]], AsyncGenerator[Any, None]]

logger = logging.getLogger(__name__)

MAX_POLICY_MILLISECONDS = 2**53
"""Larger figures (and infinities) are no limits of a job's time."""
MAX_PARTIAL_BYTES = 1_000_000
"""What an error may hold of an answer that was not finished."""

_END = object()
# How much sooner than the platform's own time-out the worker gives up: the error has to arrive while it
# counts.
_MARGIN_SHARE, _MARGIN_SECONDS = 0.1, 1.0


class Engine(Protocol):
    """What answers one kind of job."""

    def generate(self, job: JobInput, request_id: str) -> AsyncGenerator[Any, None]:
        """The job's chunks, ready for the platform. Raises WorkerError subclasses only; where a stream
        has begun, its last chunk is an error event then."""


class Serving(Protocol):
    """What the handler needs of the worker around it."""

    jobs: Jobs
    native: Engine
    openai: Engine
    request_timeout_seconds: float | None
    first_token_seconds: float | None
    errors_as_body: bool
    raw_openai_output: bool

    def ready(self) -> Awaitable[None]:
        """Wait until the engines take requests. Raises WorkerError."""

    def report(self, error: WorkerError) -> None:
        """Hear of a job's fatal error."""

    def has_begun(self, record: JobRecord) -> bool:
        """Whether the engine has made the job's first token."""

    def cut_short(self, record: JobRecord) -> Awaitable[bool]:
        """Let the job's engine requests end with what they have so far; False where there are none."""


def make_handler(serving: Serving) -> Handler:
    """The handler for `runpod.serverless.start`: an async-generator *function*, the only kind of asynchronous
    generator that the SDK detects.

    It yields each chunk, and last `{"error": …}` where the job failed. It raises nothing but
    CancelledError, which only the SDK causes.
    """

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        answer = _Answer(serving, job)
        lease = serving.jobs.open(
            answer.chunks(),
            limits=answer.limits(),
            on_release=answer.log_end,
            cut_short=answer.cut_short,
        )
        try:
            while (chunk := await answer.next(lease)) is not _END:
                with lease.posting():
                    yield chunk
            lease.release()
            for item in answer.farewell(lease):
                with lease.posting():
                    yield item
        finally:
            lease.release()

    return handler


class _Answer:
    """One job's way to its end: its chunks, its record, its failure."""

    def __init__(self, serving: Serving, job: dict[str, Any]) -> None:
        job_id = log.one_line(job.get("id"), log.MAX_ID_LENGTH)
        self.record = JobRecord(job_id)
        self.failure: WorkerError | None = None
        self.last_chunk: Any = None
        self._plain_chunks: list[Any] = []
        self._begun = False
        self._is_engines = False  # from then on the engine ends a stream that fails with an event of its own
        self._serving = serving
        self._job = job
        self._request: JobInput | None = None
        current_record.set(self.record)  # the SDK's task is this job's own, so nobody has to take it back

    def limits(self) -> list[Limit]:
        """The job's own limit goes before the worker's; its first token may have one besides."""
        execution = _platform_limit(self._job, "executionTimeout") or self._serving.request_timeout_seconds
        # A job's life begins before this worker has it, so this is the most that can be left of it.
        life = _platform_limit(self._job, "ttl")
        limits = []
        if total := min(filter(None, (execution, life)), default=None):
            limits.append(Limit(total, DeadlineError("the job's time ran out")))
        if first := self._serving.first_token_seconds:
            late = DeadlineError(f"there was no first token within {first:g} s")
            limits.append(Limit(first, late, self._has_begun))
        return limits

    async def chunks(self) -> AsyncGenerator[Any, None]:
        """The job's chunks as JSON that the SDK can send: it breaks on lone surrogates and emits NaN as
        it is."""
        job_input = self._job.get("input")
        if is_large(job_input):
            request = self._request = await asyncio.to_thread(JobInput.parse, job_input)
        else:
            request = self._request = JobInput.parse(job_input)
        if request.kind == "route":
            self.record.route = log.one_line_route(request.route)
        for warning in request.warnings:
            logger.warning("job %s: %s", self.record.job_id, warning)
        await self._serving.ready()
        engine = self._serving.openai if request.kind == "route" else self._serving.native
        self._is_engines = True
        async with aclosing(engine.generate(request, self.record.job_id)) as chunks:
            async for chunk in chunks:
                yield clean(chunk)

    async def next(self, lease: JobLease) -> Any:
        """The next chunk, or `_END` at the stream's end or failure; a failure is noted."""
        try:
            self.last_chunk = await lease.next()
            if not self._streams():
                self._plain_chunks.append(self.last_chunk)
            return self.last_chunk
        except StopAsyncIteration:
            self.record.finished_at = time.monotonic()
        except WorkerError as error:
            self._fail(error)
        except Exception:
            logger.exception("job %s: unexpected error", self.record.job_id)
            self._fail(InternalError("the worker failed on this job"))
        return _END

    def cut_short(self) -> Awaitable[bool] | None:
        """Let a plain answer come out as far as it is; a stream's reader has it already."""
        return None if self._streams() else self._serving.cut_short(self.record)

    def log_end(self) -> None:
        """Write the job's log line. A job whose stream has not ended by now was cancelled."""
        if self.record.finished_at is None:
            self.record.finished_at = time.monotonic()
            self.record.finish_reason = "cancelled"
        log.job_ended(self.record)

    def farewell(self, lease: JobLease) -> list[Any]:
        """The items that end a failed job; none for one that went well.

        A stream that the engine broke off ends with the engine's own error event. One that was cut from
        outside (deadline, shutdown, engine death), or never reached the engine, has none yet and gets one
        here. A plain answer that ran out of time leaves what there is of it in the error.
        """
        if self.failure is None:
            return []
        error = clean(self.failure.to_error())
        event: list[Any] = []
        if (self.failure is lease.failure or not self._is_engines) and self._streams():
            event = error_event(self._sample_chunk(), error)
        if isinstance(self.failure, DeadlineError) and 0 < _size(self._plain_chunks) <= MAX_PARTIAL_BYTES:
            error["output"] = self._plain_chunks
        is_refusal = isinstance(self.failure, RequestError) and self.failure.code < 500
        if self._serving.errors_as_body and self._is_route() and is_refusal:
            return [*event, *self._error_body(error)]
        return [*event, {"error": _text(error)}]

    def _streams(self) -> bool:
        return self._request.stream if self._request is not None else asks_for_events(self._job.get("input"))

    def _is_route(self) -> bool:
        if self._request is None:
            return asks_for_route(self._job.get("input"))
        return self._request.kind == "route"

    def _sample_chunk(self) -> Any:
        """A chunk in the form of the stream's. A native stream without a chunk has no form: its reader looks
        at the job's state."""
        if self.last_chunk is None and self._is_route():
            return "" if self._serving.raw_openai_output else []
        return self.last_chunk

    def _has_begun(self) -> bool:
        # a plain answer is recorded at its end alone
        self._begun = self._begun or (
            self.record.first_token_at is not None
            or self.last_chunk is not None
            or self._serving.has_begun(self.record)
        )
        return self._begun

    def _fail(self, failure: WorkerError) -> None:
        self.record.finished_at = time.monotonic()
        self.record.error_code = failure.code
        field = known_field(failure.param)
        self.record.error_type = f"{failure.type}({field})" if field else failure.type
        self.failure = failure
        if failure.fatal:
            self._serving.report(failure)

    def _error_body(self, error: dict[str, Any]) -> list[Any]:
        """OPENAI_ERRORS=body: the error as an answer that the gateway hands on with status 200. As text,
        since an object with an `error` key would fail the job. A stream holds its error event already."""
        if self.last_chunk is not None or self._streams():
            return []
        body = {"error": error}
        if isinstance(self.failure, ApplicationError) and isinstance(self.failure.body, dict):
            body = clean(self.failure.body)
        return [_text(body)]


def _platform_limit(job: dict[str, Any], name: str) -> float | None:
    """Seconds until shortly before a limit of the platform's (milliseconds), where the job carries one."""
    policy = job.get("policy")
    milliseconds = policy.get(name) if isinstance(policy, dict) else None
    if not isinstance(milliseconds, int | float) or isinstance(milliseconds, bool):
        return None
    if not 0 < milliseconds <= MAX_POLICY_MILLISECONDS:
        return None
    seconds = milliseconds / 1000
    return seconds - min(seconds * _MARGIN_SHARE, _MARGIN_SECONDS)


def _size(chunks: list[Any]) -> int:
    """Bytes of the chunks as JSON; 0 for none."""
    return len(_text(chunks).encode()) if chunks else 0


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
