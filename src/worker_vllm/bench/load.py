"""One client process's share of a run: send the requests at their moments and note what arrives when.

Streams are read without decoding their JSON, at about 35 µs of CPU a chunk, and several processes share a
run. vLLM's own `vllm.benchmarks.serve` decodes each event in one process, at about 93 µs on the same machine:
past some 10,000 events a second it measures itself, and the raw engine gives three times that on a GPU.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.watch import Watch
from worker_vllm.bench.workload import Workload, native_input, openai_body

if TYPE_CHECKING:
    import aiohttp

REQUEST_TIMEOUT_SECONDS = 600.0
"""Silence after which a request counts as failed."""

_RUNSYNC_WAIT_MS = 300_000
_TERMINAL = frozenset({"COMPLETED", "FAILED", "CANCELLED", "TIMED_OUT"})
_USAGE = re.compile(rb'"completion_tokens":\s*(\d+)')
_TEXT = re.compile(rb'"(?:text|content|reasoning_content|reasoning)":\s*"[^"]')
_TAIL_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class Endpoint:
    """Where requests go.

    Attributes:
        openai: base URL of the OpenAI routes (it ends in `/v1`).
        platform: base URL of a RunPod endpoint (`…/v2/ID`); None where only OpenAI routes exist.
        model: the name to send, None to send none.
        headers: sent with every request.
    """

    openai: str
    platform: str | None = None
    model: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values; they hold the key, so they go to child processes only."""
        return asdict(self)


@dataclass(frozen=True)
class Offer:
    """One request to send: its number, its moment in seconds after the start, and its prompt."""

    index: int
    at: float
    prompt: str


async def drive(
    endpoint: Endpoint, workload: Workload, offers: Sequence[Offer], *, start: float, concurrency: int
) -> list[RequestTimes]:
    """Send every offer and wait for every answer.

    Args:
        start: the run's first moment on the monotonic clock, shared by all client processes.
        concurrency: how many of these offers may be in flight.

    A request that fails is a result with an `error`; nothing is raised for it.
    """
    import aiohttp

    timeout = aiohttp.ClientTimeout(total=None, sock_read=REQUEST_TIMEOUT_SECONDS)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, headers=endpoint.headers
    ) as session:
        send = _sender(session, endpoint, workload)
        return await pace(offers, send, start=start, concurrency=concurrency)


async def pace(
    offers: Sequence[Offer],
    send: Callable[[Offer], Awaitable[RequestTimes]],
    *,
    start: float,
    concurrency: int,
) -> list[RequestTimes]:
    """Call `send` for each offer at its moment, at most `concurrency` at once."""
    slots = asyncio.Semaphore(concurrency)

    async def one(offer: Offer) -> RequestTimes:
        await asyncio.sleep(max(0.0, start + offer.at - time.monotonic()))
        async with slots:
            return await send(offer)

    return list(await asyncio.gather(*map(one, offers)))


def _sender(
    session: aiohttp.ClientSession, endpoint: Endpoint, workload: Workload
) -> Callable[[Offer], Awaitable[RequestTimes]]:
    import aiohttp

    if workload.route != "native":
        exchange = _openai_stream if workload.streamed else _openai_plain
    elif endpoint.platform is None:
        raise ValueError("native jobs need a RunPod endpoint, and this target has only OpenAI routes")
    else:
        exchange = _native_stream if workload.streamed else _native_plain

    async def send(offer: Offer) -> RequestTimes:
        watch = Watch(offer.index)
        try:
            await exchange(session, endpoint, workload, offer.prompt, watch)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            watch.error = f"{type(error).__name__}: {error}"[:300]
        return watch.result()

    return send


async def _openai_stream(
    session: aiohttp.ClientSession, endpoint: Endpoint, workload: Workload, prompt: str, watch: Watch
) -> None:
    body = openai_body(workload, prompt, endpoint.model)
    tail, events = b"", 0
    async with session.post(_openai_url(endpoint, workload), json=body) as response:
        if response.status >= 400:
            raise ValueError(f"HTTP {response.status}: {(await response.text())[:200]}")
        async for data, _ in response.content.iter_chunks():
            if not data:  # the end of a chunked body
                continue
            tail = (tail + data)[-_TAIL_BYTES:]
            # The chunk with the usage and the closing one hold no choice, hence no index.
            if b'"index"' in data and (watch.started or has_token(tail)):
                events += data.count(b"data: ")
                watch.text()
            else:
                watch.other()
    usage = _USAGE.findall(tail)
    watch.tokens = int(usage[-1]) if usage else events
    if not usage and b'"error"' in tail:
        raise ValueError(f"error in the stream: {tail[-200:].decode(errors='replace')}")


def has_token(received: bytes) -> bool:
    """Whether an event brings a token: text that is not empty, or any event but a chat's first, which has
    the role alone. (A token may have empty text: half of a character.)"""
    if _TEXT.search(received):
        return True
    return any(b'"index"' in line and b'"role"' not in line for line in received.splitlines())


async def _openai_plain(
    session: aiohttp.ClientSession, endpoint: Endpoint, workload: Workload, prompt: str, watch: Watch
) -> None:
    body = openai_body(workload, prompt, endpoint.model)
    async with session.post(_openai_url(endpoint, workload), json=body) as response:
        text = await response.text()
    if response.status >= 400:
        raise ValueError(f"HTTP {response.status}: {text[:200]}")
    watch.end(tokens_of(json.loads(text)))


async def _native_plain(
    session: aiohttp.ClientSession, endpoint: Endpoint, workload: Workload, prompt: str, watch: Watch
) -> None:
    url = f"{endpoint.platform}/runsync?wait={_RUNSYNC_WAIT_MS}"
    job = await _exchange(session, "POST", url, {"input": native_input(workload, prompt)})
    while job.get("status") not in _TERMINAL:
        await asyncio.sleep(workload.poll_seconds)
        job = await _exchange(session, "GET", f"{endpoint.platform}/status/{job['id']}", None)
    _check(job)
    watch.end(tokens_of(job.get("output")))
    if "delayTime" in job:
        watch.queue_seconds = job["delayTime"] / 1000


async def _native_stream(
    session: aiohttp.ClientSession, endpoint: Endpoint, workload: Workload, prompt: str, watch: Watch
) -> None:
    job = await _exchange(
        session, "POST", f"{endpoint.platform}/run", {"input": native_input(workload, prompt)}
    )
    url, status, counted = f"{endpoint.platform}/stream/{job['id']}", "IN_QUEUE", 0
    while status not in _TERMINAL:
        part = await _exchange(session, "GET", url, None)
        status = part.get("status", "FAILED")
        outputs = [item.get("output") for item in part.get("stream", [])]
        if outputs:
            watch.text(len(outputs))
            # The worker's own chunks count from the stream's start; a peer's SSE text counts for itself.
            counted += sum(tokens_of(output) for output in outputs if isinstance(output, str))
            watch.tokens = max(
                watch.tokens, counted, tokens_of([o for o in outputs if not isinstance(o, str)])
            )
        elif status not in _TERMINAL:
            await asyncio.sleep(workload.poll_seconds)
    _check(part)


def _openai_url(endpoint: Endpoint, workload: Workload) -> str:
    return endpoint.openai + ("/chat/completions" if workload.route == "chat" else "/completions")


async def _exchange(session: aiohttp.ClientSession, method: str, url: str, body: object) -> dict[str, Any]:
    async with session.request(method, url, json=body) as response:
        text = await response.text()
    if response.status >= 400:
        raise ValueError(f"HTTP {response.status}: {text[:200]}")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"not a job object: {text[:200]}")
    return value


def _check(job: dict[str, Any]) -> None:
    if job.get("status") != "COMPLETED":
        raise ValueError(f"job {job.get('status')}: {str(job.get('error', ''))[:200]}")


def tokens_of(output: object) -> int:
    """Tokens that an answer says it generated: an OpenAI object, the worker's native shape, SSE text, or a
    list of those, of which the largest counts."""
    if isinstance(output, list):
        return max(map(tokens_of, output), default=0)
    if isinstance(output, str):
        usage = _USAGE.findall(output.encode())
        return int(usage[-1]) if usage else output.count('"index"')
    if isinstance(output, dict):
        usage_object = output.get("usage") or {}
        return int(usage_object.get("completion_tokens") or usage_object.get("output") or 0)
    return 0
