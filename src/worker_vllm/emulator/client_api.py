"""The clients' side of the queue API: run, runsync, status, stream, cancel, retry, purge-queue, health,
requests.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from .job_queue import JobQueue
from .job_record import Job
from .policy import Policy
from .submission import parse_submission
from .wire import WireError, decode, json_reply, read_limited
from .worker_registry import WorkerRegistry

SHORT_QUEUE = 50
"""A queue up to this length is never too long."""


class ClientApi:
    """Handlers for clients' calls (runpod-platform.md section 1)."""

    def __init__(self, queue: JobQueue, registry: WorkerRegistry, policy: Policy) -> None:
        self._queue = queue
        self._registry = registry
        self._policy = policy

    def routes(self) -> list[web.RouteDef]:
        """The client-side routes. GET and POST are both taken where some official client uses either."""
        base = "/v2/{endpoint}"
        both = [
            ("status", self.status),
            ("status-sync", self.status_sync),
            ("stream", self.stream),
        ]
        return [
            web.post(base + "/run", self.run),
            web.post(base + "/runsync", self.runsync),
            *(web.get(f"{base}/{name}/{{job}}", handler) for name, handler in both),
            *(web.post(f"{base}/{name}/{{job}}", handler) for name, handler in both),
            web.post(base + "/cancel/{job}", self.cancel),
            web.post(base + "/retry/{job}", self.retry),
            web.post(base + "/purge-queue", self.purge_queue),
            web.get(base + "/health", self.health),
            web.get(base + "/requests", self.requests),
        ]

    async def run(self, request: web.Request) -> web.Response:
        """Queue a job; answers its id at once."""
        job = await self._submit(request, self._policy.run_limit_bytes, sync=False)
        return json_reply(job.short_view())

    async def runsync(self, request: web.Request) -> web.Response:
        """Queue a job and wait for its end; after the wait, its id and present state."""
        wait_s = self._wait_s(request)
        job = await self._submit(request, self._policy.runsync_limit_bytes, sync=True)
        if not await job.wait_ended(wait_s):
            return json_reply(job.short_view())
        return _full_reply(job)

    async def status(self, request: web.Request) -> web.Response:
        """The job object; `?ttl=ms` sets how long the record is kept from now on."""
        job = self._job(request)
        if (ttl_ms := _number(request, "ttl")) is not None:
            self._queue.keep_for(job, max(0, ttl_ms) / 1000)
        return json_reply(job.view())

    async def status_sync(self, request: web.Request) -> web.Response:
        """The job object, at its end or after the wait."""
        job = self._job(request)
        await job.wait_ended(self._wait_s(request))
        return _full_reply(job)

    async def stream(self, request: web.Request) -> web.Response:
        """What was streamed since the last call, with the job's status."""
        job = self._job(request)
        if not job.chunks and not job.state.terminal:
            await job.changed.wait(self._policy.stream_hold_s)
        chunks = job.drain()
        return json_reply({"status": job.state.value, "stream": [{"output": chunk} for chunk in chunks]})

    async def cancel(self, request: web.Request) -> web.Response:
        """Cancel a queued or running job; a finished one answers its state."""
        job = self._job(request)
        self._queue.cancel(job)
        return json_reply(job.short_view())

    async def retry(self, request: web.Request) -> web.Response:
        """Queue a FAILED or TIMED_OUT job again."""
        job = self._job(request)
        self._queue.retry(job)
        return json_reply(job.short_view())

    async def purge_queue(self, request: web.Request) -> web.Response:
        """Forget all queued jobs."""
        return json_reply({"removed": self._queue.purge(), "status": "completed"})

    async def health(self, request: web.Request) -> web.Response:
        """Counts of jobs and workers."""
        self._queue.sweep()
        return json_reply({"jobs": self._queue.totals(), "workers": self._registry.totals()})

    async def requests(self, request: web.Request) -> web.Response:
        """Every job that is kept, oldest first. The live shape is unknown (UNV); this is the likely one."""
        self._queue.sweep()
        return json_reply({"requests": [job.short_view() for job in self._queue.jobs()]})

    async def _submit(self, request: web.Request, limit_bytes: int, *, sync: bool) -> Job:
        self._check_queue_length()
        body = decode(await read_limited(request, limit_bytes, self._policy.oversize_status))
        return self._queue.submit(parse_submission(body, self._policy), sync=sync)

    def _check_queue_length(self) -> None:
        queued = self._queue.totals()["inQueue"]
        allowed = max(SHORT_QUEUE, self._policy.queue_limit_per_worker * self._registry.count())
        if self._policy.rate_limits and queued > allowed:
            raise WireError(429, f"the queue is longer than {allowed}")

    def _job(self, request: web.Request) -> Job:
        return self._queue.get(request.match_info["job"])

    def _wait_s(self, request: web.Request) -> float:
        wait_ms = _number(request, "wait")
        if wait_ms is None:
            wait_ms = self._policy.runsync_wait_ms
        return min(max(wait_ms, self._policy.min_wait_ms), self._policy.max_wait_ms) / 1000


def _full_reply(job: Job) -> web.Response:
    if job.removed:
        raise WireError(404, "job not found")
    return json_reply(job.view())


def _number(request: web.Request, key: str) -> int | None:
    """A query value in milliseconds."""
    text: Any = request.query.get(key)
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        raise WireError(400, f"{key} must be a whole number of milliseconds") from None
