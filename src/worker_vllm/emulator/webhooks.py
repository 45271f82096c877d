"""Webhooks: one POST per job at its end, tried three times (runpod-platform.md 1.9)."""

from __future__ import annotations

import asyncio
import logging
import secrets
from types import TracebackType

import aiohttp

from .job_record import Job
from .policy import Policy
from .wire import encode

logger = logging.getLogger(__name__)


class Webhooks:
    """Sends webhooks in the background. Enter it on the loop that runs the platform; leaving it drops what
    is unsent.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Webhooks:
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=self._policy.webhook_timeout_s)
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._session is not None:
            await self._session.close()

    def job_ended(self, job: Job) -> None:
        """Send this finished job to its webhook, if it has one. A failure never alters the job."""
        if job.submission.webhook:
            task = asyncio.create_task(self._send(job.id, job.submission.webhook, encode(job.webhook_view())))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _send(self, job_id: str, url: str, body: bytes) -> None:
        for delay in (0.0, *self._policy.webhook_delays_s):
            await asyncio.sleep(delay)
            if await self._try(url, body):
                return
        logger.warning(
            "webhook of job %s was not accepted in %d tries", job_id, 1 + len(self._policy.webhook_delays_s)
        )

    async def _try(self, url: str, body: bytes) -> bool:
        assert self._session is not None, "Webhooks was not entered"
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Go-http-client/2.0",
            "traceparent": f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01",
        }
        try:
            async with self._session.post(url, data=body, headers=headers) as response:
                return response.status // 100 == 2
        except (aiohttp.ClientError, TimeoutError, ValueError):  # ValueError: an address that is none
            return False
