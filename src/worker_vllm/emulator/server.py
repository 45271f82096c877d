"""The platform as one HTTP server: who may call, which faults strike, and the rooms that answer."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AsyncExitStack
from types import TracebackType

from aiohttp import web

from .client_api import ClientApi
from .faults import Faults, Handler, apply_fault
from .gateway import Gateway
from .job_queue import JobQueue
from .job_record import Job
from .policy import Policy
from .rate_limits import RateLimits
from .webhooks import Webhooks
from .wire import WireError, error_reply, json_reply
from .worker_api import WorkerApi
from .worker_registry import WorkerRegistry

logger = logging.getLogger(__name__)

WORKER_OPERATIONS = frozenset({"job-take", "job-take-batch", "job-stop", "job-stream", "job-done", "ping"})
SWEEP_INTERVAL_S = 0.1
SHUTDOWN_S = 1.0

# A burst of jobs opens as many connections at once. aiohttp lets 128 wait and drops the others, and TCP tries
# again after a second.
LONGEST_QUEUE = 4096
# A ping names every running job in its query, which outgrows aiohttp's 8 KB for a line at about 200 jobs.
LONGEST_LINE_BYTES = 1024 * 1024


class Platform:
    """A local RunPod with one endpoint. Enter it to serve; leaving it closes every connection and forgets
    all jobs.

    Args:
        policy: the platform's choices.
        api_key: the only key clients may use; None takes any.
        host, port: where to listen; port 0 picks a free one.
        clock: the job queue's clock.
        fault_seed: of the generator that decides which calls a fault strikes.

    Attributes:
        queue, registry, faults: the state, for whoever runs the platform in its own process.
        calls: how many calls of each operation (`job-stream`, `run` …) were let in.
        worker_key: the key that workers are given.
    """

    def __init__(
        self,
        policy: Policy | None = None,
        *,
        api_key: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        clock: Callable[[], float] = time.monotonic,
        fault_seed: int = 0,
    ) -> None:
        self.policy = policy or Policy()
        self.queue = JobQueue(self.policy, clock)
        self.registry = WorkerRegistry(self.queue)
        self.faults = Faults(fault_seed)
        self.calls: Counter[str] = Counter()
        self.worker_key = secrets.token_hex(16)
        self._api_key = api_key
        self._host = host
        self._port = port
        self._webhooks = Webhooks(self.policy)
        self._rate_limits = RateLimits(
            clock, lambda: self.registry.totals()["running"], self.policy.rate_limit_per_worker
        )
        self._exits = AsyncExitStack()

    @property
    def url(self) -> str:
        """The endpoint's address, without a slash at its end."""
        return f"http://{self._host}:{self._port}/v2/{self.policy.endpoint_id}"

    @property
    def port(self) -> int:
        """The port it listens on, once it does."""
        return self._port

    async def __aenter__(self) -> Platform:
        """Listen.

        Raises:
            OSError: the address cannot be used.
        """
        runner = web.AppRunner(
            self._application(),
            access_log=None,
            handler_cancellation=True,  # a held poll of a worker that is gone must not take a job
            shutdown_timeout=SHUTDOWN_S,
            max_line_size=LONGEST_LINE_BYTES,
            max_field_size=LONGEST_LINE_BYTES,
        )
        async with AsyncExitStack() as exits:
            await exits.enter_async_context(self._webhooks)
            await runner.setup()
            exits.push_async_callback(runner.cleanup)
            site = web.TCPSite(runner, self._host, self._port, backlog=LONGEST_QUEUE)
            await site.start()
            self._port = runner.addresses[0][1]
            sweeper = asyncio.create_task(self._sweep())
            sweeper.add_done_callback(_report_death)
            exits.callback(sweeper.cancel)
            self._exits = exits.pop_all()
        self.queue.on_end = self._job_ended
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exits.aclose()

    def _application(self) -> web.Application:
        # client_max_size 0 is no limit: each route reads its body under the limit of its own.
        application = web.Application(middlewares=[self._edge], client_max_size=0)
        # Routes are tried in order, and nearly all calls are workers' stream posts and the gateway's.
        application.router.add_get("/local/stats", self._stats)
        for room in (
            WorkerApi(self.queue, self.registry, self.policy, self.worker_key),
            Gateway(self.queue, self.policy),
            ClientApi(self.queue, self.registry, self.policy),
        ):
            application.add_routes(room.routes())
        return application

    @web.middleware
    async def _edge(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """What stands before every handler. A worker's call is half a round trip late in each direction."""
        operation = operation_of(request.path)
        half_s = self.policy.worker_rtt_ms / 2000 if operation in WORKER_OPERATIONS else 0.0
        if not half_s:
            return await self._answer(request, operation, handler)
        await asyncio.sleep(half_s)
        response = await self._answer(request, operation, handler)
        await asyncio.sleep(half_s)
        return response

    async def _answer(self, request: web.Request, operation: str, handler: Handler) -> web.StreamResponse:
        """Errors leave in the platform's family."""
        try:
            if operation in WORKER_OPERATIONS:
                return await self._call(request, operation, handler)
            self._check_key(request)
            with self._rate_limits.call(operation if self.policy.rate_limits else ""):
                return await self._call(request, operation, handler)
        except WireError as error:
            return error_reply(error.status, error.detail)
        except web.HTTPException as error:
            return error_reply(error.status, error.reason)

    async def _call(self, request: web.Request, operation: str, handler: Handler) -> web.StreamResponse:
        if request.match_info.get("endpoint", self.policy.endpoint_id) != self.policy.endpoint_id:
            raise WireError(404, "endpoint not found")
        self.calls[operation] += 1
        fault = self.faults.pick(operation, request.path)
        return await (handler(request) if fault is None else apply_fault(fault, request, handler))

    async def _stats(self, request: web.Request) -> web.Response:
        """What this platform counted; RunPod has no such thing. For benchmarks, which know only the wire."""
        posts = {name: self.queue.counts[name] for name in ("accepted", "duplicate", "late")}
        return json_reply({"calls": dict(self.calls), "jobs": self.queue.totals(), "results": posts})

    def _check_key(self, request: web.Request) -> None:
        """The bare key is taken too: the documentation's own samples send it so."""
        given = request.headers.get("Authorization", "")
        key = given[7:] if given[:7].lower() == "bearer " else given
        if not key and (self.policy.require_key or self._api_key is not None):
            raise WireError(401, "no token provided")
        if self._api_key is not None and not secrets.compare_digest(
            key.strip().encode(), self._api_key.encode()
        ):
            raise WireError(401, "invalid api key")

    def _job_ended(self, job: Job) -> None:
        self._webhooks.job_ended(job)
        if job.worker_id is not None:
            self.registry.check_drained(job.worker_id)

    async def _sweep(self) -> None:
        while True:
            self.queue.sweep()
            await asyncio.sleep(SWEEP_INTERVAL_S)


def operation_of(path: str) -> str:
    """The operation a path names (`run`, `job-take`, `openai` …); "" when it is not one of an endpoint."""
    parts = path.split("/", 4)
    return parts[3] if len(parts) > 3 and parts[1] == "v2" else ""


def _report_death(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        logger.critical(
            "the platform's clockwork has stopped: jobs no longer time out", exc_info=task.exception()
        )
