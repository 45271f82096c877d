"""How results go out: sent again until the platform has them, and a stream that never holds wrong text.

The SDK gives a post three tries on 5xx and none on a reset, a time-out or 429, then drops it in silence:
a final result can be lost, and a stream can have a gap that nobody sees (runpod 1.12.0, rp_http.py).

* The final result is the job's, whichever copy arrives: it is sent again with backoff until it is
  accepted or the platform says that it does not want it.
* A chunk is sent again only where it certainly was not accepted: no connection was made, or the platform
  said 429 or 503. Otherwise nobody knows, and both guesses can be wrong: sent again it may stand there
  twice, left out it may be missing, and the reader of a stream cannot tell. So the stream ends there with
  an error event, while the job goes on and its result holds the whole text. A cut stream that says so is
  the one outcome that misleads nobody.
* A job that has failed does not wait for a chunk that the platform holds: its result would come too late.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
import time
from contextlib import nullcontext
from contextvars import ContextVar
from typing import Any
from urllib.parse import quote

from worker_vllm.errors import OutputTooLargeError, RetryableError, WorkerError
from worker_vllm.serverless import log
from worker_vllm.serverless.cancellation import current_lease
from worker_vllm.serverless.error_event import error_event

MAX_RESULT_BYTES = 20_000_000
"""The platform's documented limit for a synchronous answer."""
MAX_CHUNK_BYTES = 1_000_000
"""The platform's documented limit for one chunk of a stream."""

RESULT_SECONDS = 1800.0
"""How long a result is offered: as long as the platform would keep it."""
CHUNK_SECONDS = 10.0
"""How long a chunk is offered that was not accepted; the stream's text waits meanwhile."""
POST_SECONDS = 60.0
"""How long one post may take."""
FIRST_PAUSE_SECONDS, MAX_PAUSE_SECONDS = 0.2, 10.0

_NOT_SENT = 0  # in place of a status: no connection could be made
_BUSY = frozenset({429, 503})
_TRY_AGAIN = frozenset({408, 425})
_HEADERS = {"Content-Type": "application/x-www-form-urlencoded", "charset": "utf-8"}

_stream_is_cut: ContextVar[bool] = ContextVar("stream_is_cut", default=False)
"""Of the job whose task is running: its stream has ended early."""

logger = logging.getLogger(__name__)


class Delivery:
    """Stands in for the SDK's `send_result` and `stream_result`.

    Args:
        result_url: where results go, with `$ID` for the job's id.
        chunk_url: where chunks go; None where the platform takes none (the Hub's test runner).
    """

    def __init__(self, result_url: str, chunk_url: str | None) -> None:
        self._result_url = result_url
        self._chunk_url = chunk_url

    async def send_result(
        self, session: Any, job_data: dict[str, Any], job: dict[str, Any], is_stream: bool = False
    ) -> None:
        """Post a job's final result until it is accepted, refused for good, or too old to matter."""
        body = _encode(job_data)
        if len(body) > MAX_RESULT_BYTES:
            body = _too_large(
                f"the job's output has {len(body)} bytes; the platform takes {MAX_RESULT_BYTES}"
            )
        url = _url(self._result_url, job, is_stream)
        deadline = time.monotonic() + RESULT_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            status = await _post(session, url, job, body)
            if status == 413:
                body = _too_large("the platform refused the job's output as too large")
                status = await _post(session, url, job, body)
            if status is not None and status < 300:
                return
            if not _is_transient(status) or time.monotonic() > deadline:
                logger.error("the result of job %s was not accepted (%s)", _shown(job), status or "no answer")
                return
            logger.warning("the result of job %s is sent again (%s)", _shown(job), status or "no answer")
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, MAX_PAUSE_SECONDS)

    async def stream_result(self, session: Any, job_data: dict[str, Any], job: dict[str, Any]) -> None:
        """Post one chunk of a job's stream, or end the stream there."""
        if self._chunk_url is None or _stream_is_cut.get():
            return
        lease = current_lease.get()
        try:
            async with nullcontext() if lease is None else lease.offering():
                await self._stream(session, job_data, job, self._chunk_url)
        except TimeoutError:
            _stream_is_cut.set(True)
            logger.warning("job %s has failed while the platform held a chunk of it", _shown(job))

    async def _stream(
        self, session: Any, job_data: dict[str, Any], job: dict[str, Any], chunk_url: str
    ) -> None:
        url = _url(chunk_url, job, False)
        body = _encode(job_data)
        error: WorkerError
        if len(body) > MAX_CHUNK_BYTES:
            error = OutputTooLargeError(
                f"a piece of the stream has {len(body)} bytes, the platform takes {MAX_CHUNK_BYTES}; "
                "the job's output holds the whole answer"
            )
        elif await self._offer(session, url, job, body):
            return
        else:
            error = RetryableError("the stream was interrupted; the job's output holds the whole answer")
        _stream_is_cut.set(True)
        logger.warning("the stream of job %s ends early (%d); its result is whole", _shown(job), error.code)
        for event in error_event(job_data.get("output"), error.to_error()):
            await self._offer(session, url, job, _encode({"output": event}))

    async def _offer(self, session: Any, url: str, job: dict[str, Any], body: bytes) -> bool:
        """Whether the chunk was accepted."""
        deadline = time.monotonic() + CHUNK_SECONDS
        pause = FIRST_PAUSE_SECONDS
        while True:
            status = await _post(session, url, job, body)
            if status is not None and status < 300:
                return True
            if (status != _NOT_SENT and status not in _BUSY) or time.monotonic() + pause > deadline:
                return False
            await asyncio.sleep(pause)
            pause = min(2 * pause, MAX_PAUSE_SECONDS)


async def _post(session: Any, url: str, job: dict[str, Any], body: bytes) -> int | None:
    """The answer's status; `_NOT_SENT`, or None where nobody knows what became of it."""
    import aiohttp

    headers = {**_HEADERS, "X-Request-ID": _shown(job)}
    timeout = aiohttp.ClientTimeout(total=POST_SECONDS)
    try:
        async with session.post(url, data=body, headers=headers, timeout=timeout) as response:
            await response.read()
            return int(response.status)
    except aiohttp.ClientConnectorError:
        return _NOT_SENT
    except (aiohttp.ClientError, TimeoutError, OSError):
        return None


def _is_transient(status: int | None) -> bool:
    return not status or status >= 500 or status in _BUSY or status in _TRY_AGAIN


def _url(template: str, job: dict[str, Any], is_stream: bool) -> str:
    return f"{template.replace('$ID', quote(job['id'], safe=''))}&isStream={'true' if is_stream else 'false'}"


def _shown(job: dict[str, Any]) -> str:
    return log.one_line(job["id"], log.MAX_ID_LENGTH)


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode()


def _too_large(message: str) -> bytes:
    return _encode({"error": OutputTooLargeError(message).to_json()})
