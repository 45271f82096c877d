"""Jobs that name one of vLLM's routes: through vLLM's own app, so every route and error is vLLM's own."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from worker_vllm import asgi, sse
from worker_vllm.batching import BatchSize, coalesce
from worker_vllm.constraint_ways import CONSTRAINING_FIELDS, check_constraints
from worker_vllm.engine import application, pacing
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.record import current_demand, current_record
from worker_vllm.engine.routes import Route, Routes
from worker_vllm.errors import ApplicationError, EngineDeadError, InternalError, RequestError, WorkerError
from worker_vllm.job import JobInput
from worker_vllm.settings import WorkerSettings

# Fields of a body that run templates, choose processors or name hosts to fetch from, with the argument of
# vLLM's by which the operator has opened them.
_OPENED_BY = {
    "chat_template": "trust_request_chat_template",
    "mm_processor_kwargs": "trust_request_mm_kwargs",
    "media_io_kwargs": "trust_request_mm_kwargs",
    "kv_transfer_params": "kv_transfer_config",
    "ec_transfer_params": "ec_transfer_config",
}


class OpenAIvLLMEngine:
    """Answers jobs that name a route.

    A plain answer is one chunk: the response object, or text, or `data_b64` for other content. A stream's
    chunks hold whole server-sent events, one chunk per round trip of the platform unless batch sizes are set:
    text as vLLM sent it, or, for chat and completions with RAW_OPENAI_OUTPUT=0, lists of chunk objects.
    """

    def __init__(self, host: EngineHost, settings: WorkerSettings) -> None:
        self._host = host
        self._settings = settings
        self._routes: Routes | None = None

    def generate(self, job: JobInput, request_id: str) -> AsyncGenerator[Any, None]:
        """The job's chunks, ready for the SDK. The host must be ready, and the caller closes what it gets:
        that disconnects from the app and ends the job's work in the engine.

        Args:
            job: of kind "route".
            request_id: vLLM's own ids of the job's requests hold it.

        Raises:
            WorkerError: what went wrong. Where a stream was asked for, its last chunk holds the error event.
        """
        at_pace = job.stream and pacing.batch_size(self._settings, job.batch) is None
        return self._host.attend(self._chunks(job, request_id), at_pace=at_pace)

    async def _chunks(self, job: JobInput, request_id: str) -> AsyncGenerator[Any, None]:
        route: Route | None = None
        has_begun = False
        try:
            route = self._route(job)
            async with application.open_answer(
                self._host,
                method=route.method,
                path=job.route,
                query=job.query,
                body=self._body(job, route, request_id),
                request_id=request_id,
            ) as response:
                if not response.headers.get("content-type", "").startswith(application.EVENT_STREAM):
                    yield self._plain(job, response.headers, await response.read())
                    return
                async with aclosing(self._stream(response, job, route)) as chunks:
                    async for chunk in chunks:
                        has_begun = True
                        yield chunk
        except WorkerError as error:
            # A client that reads a stream learns of a refusal from the stream alone: the gateway shows it no
            # failed job's error.
            if job.stream and not has_begun:
                yield self._error_chunk(error, route)
            raise

    def _error_chunk(self, error: WorkerError, route: Route | None) -> Any:
        if route is not None and self._is_parsed(route):
            return [{"error": error.to_error()}]
        return "".join(_error_events(error, named=route is not None and not route.chunks))

    def _is_parsed(self, route: Route) -> bool:
        return route.chunks and not self._settings.raw_openai_output

    def _batch_size(self, job: JobInput, route: Route) -> BatchSize | None:
        return pacing.batch_size(self._settings, job.batch) if route.chunks else None

    def _route(self, job: JobInput) -> Route:
        if self._routes is None:
            self._routes = Routes(self._host.app, self._host.tasks, self._settings.worker_routes)
        return self._routes.find(job.method, job.route)

    def _body(self, job: JobInput, route: Route, request_id: str) -> dict[str, Any] | None:
        for name in job.operator_fields:
            argument = _OPENED_BY[name.split(".")[-1]]
            if not getattr(self._host.args, argument, None):
                message = (
                    f"{name} is closed to jobs; the endpoint's operator opens it with {argument.upper()}"
                )
                raise RequestError(message, param=name)
        self._check_length(job.body or {})
        if self._host.follows_every_way:
            for name in CONSTRAINING_FIELDS:
                check_constraints((job.body or {}).get(name), name)
        if route.method in ("GET", "HEAD"):
            return job.body
        body = dict(job.body or {})
        if route.takes_model and not body.get("model"):
            body["model"] = self._host.served_model_names[0]
        if route.id_field is not None:
            body.setdefault(route.id_field, f"resp_{request_id}")
        return body

    def _check_length(self, body: Mapping[str, Any]) -> None:
        """Refuse token ids that no context holds here: vLLM reads each of them first, while all jobs wait."""
        ids = next(filter(None, (body.get(name) for name in ("prompt", "input", "token_ids"))), None)
        limit = self._host.frontend.max_model_len
        if not isinstance(ids, list) or len(ids) <= limit or not isinstance(ids[0], int):
            return
        if body.get("truncate_prompt_tokens") is None:
            message = f"the prompt has {len(ids)} tokens and the model's context holds {limit}"
            raise RequestError(message, param="prompt")

    def _plain(self, job: JobInput, headers: dict[str, str], content: bytes) -> Any:
        answer = application.decode(headers, content)
        if isinstance(answer, dict):
            if (record := current_record.get()) and (job.body or {}).get("use_beam_search"):
                record.take_usage(answer.get("usage"))
            # A response object with status "failed". The SDK would fail the job for the key alone, and send
            # Python's idea of the object.
            if error := answer.get("error"):
                raise ApplicationError(500, error if isinstance(error, dict) else None, answer)
        return answer

    async def _stream(
        self, response: asgi.Response, job: JobInput, route: Route
    ) -> AsyncGenerator[Any, None]:
        batches = self._arrivals(response, route)
        size = self._batch_size(job, route)
        limit = self._settings.max_chunk_bytes
        if size is not None:
            events = _singly(batches)
            batches = coalesce(events, size=size, weigh=_one, cost=_byte_count, max_bytes=limit)
        parsed = self._is_parsed(route)
        async with aclosing(batches):
            async for batch in batches:
                for part in _parts(batch, limit):
                    if not parsed:
                        yield "".join(part)
                    elif chunks := [json.loads(data) for event in part if (data := _object_data(event))]:
                        yield chunks

    async def _arrivals(self, response: asgi.Response, route: Route) -> AsyncGenerator[list[str], None]:
        """The stream's events that hold data: each time it is asked, those that have come since.

        Where one of them is an error, or the app fails, the error is raised after the last event, and an
        error event has been the last, or the last but `[DONE]`.
        """
        decoder = sse.EventDecoder()
        failure: WorkerError | None = None
        demand = current_demand()
        try:
            while content := await response.read_available(lambda: demand.settled):
                demand.served()
                # An event without data is a keep-alive: RunPod's gateway has its own.
                events = [event for event in decoder.feed(content) if sse.data_of(event) is not None]
                for event in events:
                    failure = failure or _failure_in(event)
                if events:
                    yield events
                demand.want()
            if rest := decoder.flush():
                yield rest
        except InternalError as error:
            failure = application.cause_of(error)
            yield _error_events(failure, named=not route.chunks)
        if failure is not None:
            if self._host.errored:
                raise EngineDeadError("the engine died; this worker is leaving service") from failure
            raise failure


async def _singly(batches: AsyncGenerator[list[str], None]) -> AsyncGenerator[str, None]:
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                yield event


def _parts(events: list[str], max_bytes: int) -> Iterator[list[str]]:
    """The events in lists of at most so many bytes; one that is larger goes alone."""
    part: list[str] = []
    part_bytes = 0
    for event in events:
        event_bytes = _byte_count(event)
        if part and part_bytes + event_bytes > max_bytes:
            yield part
            part, part_bytes = [], 0
        part.append(event)
        part_bytes += event_bytes
    yield part


def _failure_in(event: str) -> ApplicationError | None:
    """vLLM's error event: an `error` object in place of a chunk, named "error" on the routes that name their
    events. A cheap look first: this runs for every event of every stream."""
    if '"error"' not in event[:100] and not event.startswith("event: error"):
        return None
    try:
        body = json.loads(sse.data_of(event) or "")
    except ValueError:
        return None
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return None
    status = error.get("code")
    return ApplicationError(status if isinstance(status, int) else 500, error, body)


def _error_events(error: WorkerError, *, named: bool) -> list[str]:
    body = json.dumps({"error": error.to_error()}, ensure_ascii=False)
    return [sse.encode(body, "error")] if named else [sse.encode(body), sse.encode(sse.DONE)]


def _object_data(event: str) -> str | None:
    return None if sse.is_done(event) else sse.data_of(event)


def _one(event: str) -> int:
    return 1


def _byte_count(event: str) -> int:
    return len(event.encode("utf-8", "replace"))
