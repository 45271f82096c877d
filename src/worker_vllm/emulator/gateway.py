"""The OpenAI gateway: any call under /openai becomes a job, and its output an HTTP response (runpod-
platform.md 2).
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from aiohttp import web

from .job_queue import JobQueue
from .job_record import NOTHING, Job, JobState
from .policy import Policy
from .submission import default_submission
from .wire import WireError, decode, encode, error_reply, read_limited, to_bytes

logger = logging.getLogger(__name__)

KEEP_ALIVE = b": keep-alive\n\n"
_JSON = {"Content-Type": "application/json; charset=utf-8"}


class Gateway:
    """Handler for /openai/*. A worker cannot choose the HTTP status: success is 200, everything else 500."""

    def __init__(self, queue: JobQueue, policy: Policy) -> None:
        self._queue = queue
        self._policy = policy

    def routes(self) -> list[web.RouteDef]:
        """The one route; which paths exist is the worker's business."""
        return [web.route("*", "/v2/{endpoint}/openai{route:/.*}", self.call)]

    async def call(self, request: web.Request) -> web.StreamResponse:
        """Make the job, then relay what comes of it. The HTTP method does not reach the worker."""
        raw = await read_limited(request, self._policy.gateway_limit_bytes, self._policy.oversize_status)
        body = decode(raw) if raw.strip() else {}
        route = request.match_info["route"]
        if self._policy.gateway_forward_query and request.query_string:
            route = f"{route}?{request.query_string}"
        streamed = isinstance(body, dict) and body.get("stream") is True
        submission = default_submission({"openai_route": route, "openai_input": body}, self._policy)
        job = self._queue.submit(submission, sync=not streamed)
        relay = _Relay(request)
        try:
            return await (self._stream(relay, job) if streamed else self._plain(job))
        except (asyncio.CancelledError, ConnectionError) as gone:
            if self._policy.gateway_cancel_on_disconnect:
                self._queue.cancel(job)
            if isinstance(gone, asyncio.CancelledError):
                raise
            # Nothing is wrong: the OpenAI SDK hangs up at [DONE], before the body's end.
            return relay.response

    async def _plain(self, job: Job) -> web.Response:
        if not await job.wait_ended(self._policy.gateway_wait_s):
            return error_reply(self._policy.gateway_wait_status, "the worker did not answer in time")
        if job.state is not JobState.COMPLETED:
            return _failure(job)
        content = self._unwrap(job.output)
        # A string is text that the worker has already made, most likely JSON: it passes as it is.
        return web.Response(
            body=to_bytes(content) if isinstance(content, str) else encode(content), headers=_JSON
        )

    def _unwrap(self, output: Any) -> Any:
        if output is NOTHING:
            return None
        if isinstance(output, list) and (
            len(output) == 1 or (output and self._policy.gateway_several_outputs == "first")
        ):
            return output[0]
        return output

    async def _stream(self, relay: _Relay, job: Job) -> web.StreamResponse:
        """Relay each chunk as it arrives. Headers go out with the first bytes, so an early failure is still
        a 500.
        """
        loop = asyncio.get_running_loop()
        limit_s = self._policy.gateway_stream_limit_s
        deadline = loop.time() + limit_s if limit_s else None
        attempt = 0
        while True:
            ended = job.state.terminal or job.removed
            if chunks := job.drain():
                if relay.relayed and job.attempt != attempt and self._policy.gateway_stream_retry == "end":
                    return await relay.finish(cut=self._policy.gateway_broken_stream == "abort")
                attempt = job.attempt
                for chunk in chunks:
                    await relay.send(_as_sse(chunk))
                continue
            if ended:
                return await self._end_stream(relay, job)
            if deadline is not None and loop.time() >= deadline:
                return await relay.finish(cut=False) if relay.started else _failure(job)
            await self._wait(relay, job, deadline)

    async def _wait(self, relay: _Relay, job: Job, deadline: float | None) -> None:
        """Until something changed, a keep-alive is due or the stream's time is over."""
        wait_s = self._policy.gateway_keep_alive_s or 3600.0
        if deadline is not None:
            wait_s = min(wait_s, deadline - asyncio.get_running_loop().time())
        if not await job.changed.wait(wait_s) and self._policy.gateway_keep_alive_s:
            await relay.send(KEEP_ALIVE, relayed=False)

    async def _end_stream(self, relay: _Relay, job: Job) -> web.StreamResponse:
        completed = job.state is JobState.COMPLETED and not job.removed
        if not completed:
            if not relay.started:
                return _failure(job)
            logger.warning("job %s ended %s in mid-stream: %.500s", job.id, job.state, job.error)
            return await relay.finish(cut=self._policy.gateway_broken_stream == "abort")
        if not relay.relayed and job.output is not NOTHING:
            # A worker that does not stream: all chunks come at once in its output.
            for chunk in job.output if isinstance(job.output, list) else [job.output]:
                await relay.send(_as_sse(chunk))
        return await relay.finish(cut=False)


class _Relay:
    """The response of one stream, begun when there is something to send.

    Attributes:
        response: the response itself.
        started: whether the headers are out.
        relayed: whether any of the worker's output is.
    """

    def __init__(self, request: web.Request) -> None:
        self._request = request
        self.response = web.StreamResponse(
            headers={
                "Content-Type": "text/event-stream",
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",
            }
        )
        self.started = False
        self.relayed = False

    async def send(self, data: bytes, *, relayed: bool = True) -> None:
        await self._start()
        self.relayed = self.relayed or relayed
        await self.response.write(data)

    async def finish(self, *, cut: bool) -> web.StreamResponse:
        await self._start()
        transport = self._request.transport
        if cut and transport is not None:
            transport.abort()
        else:
            await self.response.write_eof()
        return self.response

    async def _start(self) -> None:
        if not self.started:
            self.started = True
            await self.response.prepare(self._request)


def _as_sse(chunk: Any) -> bytes:
    """A worker's chunk as bytes of the stream: text as it is, any other value as one event."""
    return to_bytes(chunk) if isinstance(chunk, str) else b"data: " + encode(chunk) + b"\n\n"


def _failure(job: Job) -> web.Response:
    """The gateway's bare 500: nothing of the worker's error reaches the client. The log has it, for whoever
    runs this.
    """
    if job.removed:
        raise WireError(500, "")
    logger.warning("job %s ended %s: %.2000s", job.id, job.state, "" if job.error is NOTHING else job.error)
    return error_reply(500, "")
