"""The program of one client process: a line of JSON in, a run, a line of JSON out.

    {"endpoint": {…}, "workload": {…}, "offers": [[index, at, prompt], …], "start": s, "concurrency": n}
    {"times": [{…}, …], "cpu_seconds": s}

`bench.clients` starts it; the raw engine's program speaks the same lines.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any, TextIO

from worker_vllm.bench.load import Endpoint, Offer, drive
from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.workload import Workload

Share = Callable[[dict[str, Any], Workload, list[Offer]], Awaitable[list[RequestTimes]]]


def new_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed: the client should cost as little as it can."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def serve(runner: asyncio.Runner, share: Share, requests: TextIO, answers: TextIO) -> None:
    """Answer each line of `requests` with one on `answers` until the input ends."""
    for line in requests:
        message = json.loads(line)
        workload = Workload.from_json(message["workload"])
        offers = [Offer(*offer) for offer in message["offers"]]
        # A collection in mid-run would be seen as a gap in every stream.
        gc.disable()
        cpu_before = time.process_time()
        times = runner.run(_awaited(share(message, workload, offers)))
        cpu_seconds = time.process_time() - cpu_before
        gc.enable()
        answer = {"times": [one.to_json() for one in times], "cpu_seconds": cpu_seconds}
        print(json.dumps(answer), file=answers, flush=True)


async def _awaited(result: Awaitable[list[RequestTimes]]) -> list[RequestTimes]:
    return await result


async def _http_share(message: dict[str, Any], workload: Workload, offers: list[Offer]) -> list[RequestTimes]:
    endpoint = Endpoint(**message["endpoint"])
    return await drive(endpoint, workload, offers, start=message["start"], concurrency=message["concurrency"])


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_loop) as client_runner:
        serve(client_runner, _http_share, sys.stdin, sys.stdout)
