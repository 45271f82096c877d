"""The client side of a run: several processes that share its requests, so that the load itself is never the
limit."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from worker_vllm.bench.load import Endpoint, Offer
from worker_vllm.bench.process import Child
from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.workload import Workload, arrivals, prompts

_HEAD_START_SECONDS = 0.3
"""Between telling the clients of a run and its first request, so that all begin together."""


@dataclass(frozen=True)
class Seen:
    """What the clients saw of one run.

    Attributes:
        times: one entry per request, in the order of their numbers.
        busy: the share of the run's time that the busiest client process computed; near 1, the client
            was the limit.
    """

    times: tuple[RequestTimes, ...]
    busy: float


def offers(workload: Workload, round_number: int) -> list[Offer]:
    """The requests of one round."""
    moments, texts = arrivals(workload, round_number), prompts(workload, round_number)
    return [Offer(index, at, text) for index, (at, text) in enumerate(zip(moments, texts, strict=True))]


class Clients:
    """Client processes, kept for all runs. Use it through `started`."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = children

    @classmethod
    @contextlib.contextmanager
    def started(cls, count: int, environ: Mapping[str, str], logs: Path) -> Iterator[Clients]:
        """`count` client processes, ended on leaving."""
        command = [sys.executable, "-m", "worker_vllm.bench.client_process"]
        with contextlib.ExitStack() as stack:
            children = []
            for number in range(count):
                child = Child(command, environ, logs / f"client-{number}.log", talks=True)
                stack.callback(child.stop)
                children.append(child)
            yield cls(children)

    def run(self, endpoint: Endpoint, workload: Workload, round_number: int) -> Seen:
        """Offer one round's requests to `endpoint`. Raises ChildFailed when a client process dies."""
        shares = deal(offers(workload, round_number), workload.concurrency, len(self._children))
        busy_children = self._children[: len(shares)]
        start = time.monotonic() + _HEAD_START_SECONDS
        for child, (share, concurrency) in zip(busy_children, shares, strict=True):
            child.tell(
                {
                    "endpoint": endpoint.to_json(),
                    "workload": workload.to_json(),
                    "offers": [[offer.index, offer.at, offer.prompt] for offer in share],
                    "start": start,
                    "concurrency": concurrency,
                }
            )
        answers = [child.answer() for child in busy_children]
        times = sorted(
            (RequestTimes.from_json(one) for answer in answers for one in answer["times"]),
            key=lambda one: one.index,
        )
        return Seen(tuple(times), busy=busy_share([answer["cpu_seconds"] for answer in answers], times))


def deal(all_offers: Sequence[Offer], concurrency: int, processes: int) -> list[tuple[list[Offer], int]]:
    """Each process's offers and how many of them may be in flight. No process gets nothing."""
    count = max(1, min(processes, concurrency, len(all_offers)))
    return [
        (list(all_offers[number::count]), concurrency // count + (number < concurrency % count))
        for number in range(count)
    ]


def busy_share(cpu_seconds: Sequence[float], times: Sequence[RequestTimes]) -> float:
    """CPU seconds of the busiest process over the run's seconds."""
    seconds = max((one.last for one in times), default=0.0) - min((one.sent for one in times), default=0.0)
    return max(cpu_seconds, default=0.0) / seconds if seconds > 0 else 0.0
