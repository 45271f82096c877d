"""The worker's side of the wire: job-take, job-take-batch, job-stop, job-stream, job-done, ping (runpod-
sdk.md 9).
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from aiohttp import web

from .faults import REDELIVER
from .job_queue import JobQueue
from .job_record import NOTHING, Job
from .policy import Policy
from .wire import WireError, decode, encode, read_limited, split_path_query, to_bytes
from .worker_registry import Phase, Worker, WorkerRegistry

logger = logging.getLogger(__name__)

STOPPING_HOLD_S = 0.2
"""How long a stopping worker's further polls are held: not zero, because the SDK asks again without any
delay.
"""

WIRE_LIMIT_BYTES = 512 * 1024 * 1024
"""A bound for this process's memory only; the platform's own limits are in the policy."""


class WorkerApi:
    """Handlers for workers' calls.

    Args:
        worker_key: what a worker must send as its Authorization when the policy checks it.
    """

    def __init__(self, queue: JobQueue, registry: WorkerRegistry, policy: Policy, worker_key: str) -> None:
        self._queue = queue
        self._registry = registry
        self._policy = policy
        self._worker_key = worker_key
        self._again: list[Job] = []

    def routes(self) -> list[web.RouteDef]:
        """The worker-side routes."""
        base = "/v2/{endpoint}"
        return [
            web.post(base + "/job-stream/{worker}/{job}", self.stream),
            web.post(base + "/job-done/{worker}/{job}", self.done),
            web.get(base + "/job-take/{worker}", self.take),
            web.get(base + "/job-take-batch/{worker}", self.take),
            web.get(base + "/job-stop/{worker}", self.stop),
            web.get(base + "/ping/{worker}", self.ping),
        ]

    async def take(self, request: web.Request) -> web.Response:
        """Hold until there is a job (or several, for a batch), then hand it out; 204 at the end of the
        hold.
        """
        worker, query = self._caller(request), _query(request)
        batch = "/job-take-batch/" in request.path
        limit = _batch_size(query) if batch else 1
        self._registry.heard_take(worker)
        deadline = _now() + self._policy.take_hold_s
        while True:
            if worker.phase is Phase.STOPPING:
                deadline = min(deadline, _now() + STOPPING_HOLD_S)
            if jobs := self._next_jobs(worker, limit):
                if request.get(REDELIVER):
                    self._again += jobs
                return self._hand_out(jobs, batch=batch)
            if not await worker.wake.wait(deadline - _now()):
                return web.Response(status=204)

    async def stop(self, request: web.Request) -> web.Response:
        """Hold until this worker has a job to drop."""
        worker = self._caller(request)
        deadline = _now() + self._policy.stop_hold_s
        while True:
            if worker.phase is Phase.STOPPING:
                deadline = min(deadline, _now() + STOPPING_HOLD_S)
            if worker.stops:
                stops, worker.stops = worker.stops, []
                return _worker_json(encode({"jobsToStop": stops}))
            if not await worker.wake.wait(deadline - _now()):
                return web.Response(status=204)

    async def stream(self, request: web.Request) -> web.Response:
        """Take one streamed output of a job."""
        worker = self._caller(request)
        body = await read_limited(request, WIRE_LIMIT_BYTES, 413)
        limit = self._policy.chunk_limit_bytes
        if len(body) > limit and self._policy.oversize_chunk == "reject":
            raise WireError(400, f"a streamed output may have {limit} bytes")
        message = _message(body)
        job = self._queue.get(self._job_id(request))
        if "output" in message:
            self._queue.add_chunks(job, worker.id, split_chunk(message["output"], limit))
        return web.Response(status=200)

    async def done(self, request: web.Request) -> web.Response:
        """Take a job's result, or a progress update, which comes the same way."""
        worker = self._caller(request)
        body = await read_limited(request, WIRE_LIMIT_BYTES, 413)
        message = _message(body)
        job = self._queue.get(self._job_id(request))
        if message.get("status") == "IN_PROGRESS":
            self._queue.progress(job, worker.id, message.get("output"))
            return web.Response(status=200)
        limit = self._policy.runsync_limit_bytes if job.sync else self._policy.run_limit_bytes
        if self._policy.enforce_output_limit and len(body) > limit:
            raise WireError(self._policy.oversize_output_status, f"an output may have {limit} bytes")
        # Null and "" are nothing: a handler that returned nothing leaves no `output`.
        output, error = message.get("output"), message.get("error")
        self._queue.finish(
            job, worker.id, NOTHING if output is None else output, NOTHING if error in (None, "") else error
        )
        if message.get("stopPod"):
            self._registry.drain(worker.id)
        self._registry.check_drained(worker.id)
        return web.Response(status=200)

    async def ping(self, request: web.Request) -> web.Response:
        """Note that the worker lives and which jobs it has, or that its fitness checks have failed."""
        worker, query = self._caller(request), _query(request)
        if query.get("status") == "unhealthy":
            logger.warning("%s is unhealthy: %s: %s", worker.id, query.get("check"), query.get("reason"))
            self._registry.gone(worker.id)
            return web.Response(status=200)
        self._registry.heard_ping(worker, [name for name in query.get("job_id", "").split(",") if name])
        return web.Response(status=200)

    def _caller(self, request: web.Request) -> Worker:
        if self._policy.check_worker_key and request.headers.get("Authorization") != self._worker_key:
            raise WireError(401, "invalid api key")
        return self._registry.get(request.match_info["worker"].partition("&")[0])

    def _job_id(self, request: web.Request) -> str:
        return request.match_info["job"].partition("&")[0]

    def _next_jobs(self, worker: Worker, limit: int) -> list[Job]:
        if not self._may_take(worker):
            return []
        if self._again:
            jobs, self._again = self._again[:limit], self._again[limit:]
            return jobs
        jobs = self._queue.take(worker.id, limit)
        self._registry.handed(worker, (job.id for job in jobs))
        return jobs

    def _may_take(self, worker: Worker) -> bool:
        if worker.phase is Phase.STOPPING:
            return self._policy.jobs_while_stopping
        return worker.phase is Phase.SERVING

    def _hand_out(self, jobs: list[Job], *, batch: bool) -> web.Response:
        views = [job.worker_view(send_policy=self._policy.send_policy) for job in jobs]
        # Escapes are kept as escapes: a lone surrogate in a caller's JSON reaches the worker as it was sent.
        return _worker_json(json.dumps(views if batch else views[0], sort_keys=True).encode())


def split_chunk(output: Any, limit_bytes: int) -> list[Any]:
    """A streamed output in pieces within the limit. Only text can be cut; other values go whole."""
    if not isinstance(output, str) or len(output) * 3 <= limit_bytes:
        return [output]
    pieces, start, data = [], 0, to_bytes(output)
    while start < len(data):
        end = min(start + limit_bytes, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:  # inside a character: cut before it
            end -= 1
        pieces.append(data[start:end].decode())
        start = end
    return pieces


def _message(body: bytes) -> dict[str, Any]:
    message = decode(body)
    if not isinstance(message, dict):
        raise WireError(400, "the body must be a JSON object")
    return message


def _query(request: web.Request) -> dict[str, str]:
    return split_path_query(request.match_info["worker"], request.query_string)[1]


def _worker_json(body: bytes) -> web.Response:
    # Exactly this type: the SDK drops what is labelled otherwise.
    return web.Response(body=body, headers={"Content-Type": "application/json"})


def _batch_size(query: dict[str, str]) -> int:
    # The SDK writes a fractional concurrency as it is ("2.5").
    try:
        return max(1, int(float(query.get("batch_size", "1"))))
    except (ValueError, OverflowError):
        raise WireError(400, "batch_size must be a number") from None


def _now() -> float:
    return asyncio.get_running_loop().time()
