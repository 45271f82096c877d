"""The order of things: start every target, let them take turns, stop them all.

Targets take turns within each round, because a machine's speed drifts, and what is compared must be measured
close together. The order turns round by round, so that none is always the first after a pause.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from worker_vllm.bench.clients import Clients, Seen
from worker_vllm.bench.report import Run
from worker_vllm.bench.startup import Start
from worker_vllm.bench.stats import summarize
from worker_vllm.bench.targets import Target, TargetError
from worker_vllm.bench.usage import Meter, Usage
from worker_vllm.bench.workload import Workload

Tell = Callable[[str], None]

_FIRST_ROUND, _WARM_UP_ROUND = -1, -2
"""Numbers of rounds that are not measured, so that their prompts are nobody else's."""


def together(
    targets: Sequence[Target],
    clients: Clients,
    workloads: Sequence[Workload],
    *,
    rounds: int,
    warm_up: bool,
    tell: Tell,
) -> tuple[list[Start], list[Run]]:
    """All targets up at once, taking turns in every round.

    Raises ChildFailed or TargetError when a target fails; whatever was started is stopped in any case.
    """
    starts, runs = [], []
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.callback(target.stop)
            starts += bring_up(target, clients, workloads[0], tell)
        if warm_up:
            for target, workload in _pairs(targets, workloads):
                target.run(clients, workload, _WARM_UP_ROUND)
        for round_number in range(rounds):
            for workload in workloads:
                for target in _turned(targets, round_number):
                    if target.accepts(workload):
                        runs.append(measure(target, clients, workload, round_number))
                        tell(_line(runs[-1]))
    return starts, runs


def one_by_one(
    targets: Sequence[Target],
    clients: Clients,
    workloads: Sequence[Workload],
    *,
    rounds: int,
    warm_up: bool,
    tell: Tell,
) -> tuple[list[Start], list[Run]]:
    """One target up at a time, started anew in every round: for machines that cannot hold several, and to
    time starts more than once. Raises as `together` does."""
    starts, runs = [], []
    for round_number in range(rounds):
        for target in _turned(targets, round_number):
            with contextlib.ExitStack() as stack:
                stack.callback(target.stop)
                starts += bring_up(target, clients, workloads[0], tell)
                for workload in filter(target.accepts, workloads):
                    if warm_up:
                        target.run(clients, workload, _WARM_UP_ROUND)
                    runs.append(measure(target, clients, workload, round_number))
                    tell(_line(runs[-1]))
    return starts, runs


def bring_up(target: Target, clients: Clients, workload: Workload, tell: Tell) -> list[Start]:
    """Start one target, ask it for a first token, and time both; empty for a target that ran already.

    Raises ChildFailed when it does not start, TargetError when its first request fails.
    """
    tell(f"{target.name}: starting")
    target.start()
    ready_at = time.time()
    first = replace(workload, requests=1, concurrency=1, max_tokens=2, rate=None, streamed=True)
    if not target.accepts(first):
        first = replace(first, route="completions")
    seen = target.run(clients, first, _FIRST_ROUND).times[0]
    if seen.error is not None or seen.first is None:
        raise TargetError(f"{target.name}: the first request failed: {seen.error}")
    born = target.born_at()
    if born is None:
        return []
    first_at = seen.first + (time.time() - time.monotonic())
    start = Start(target.name, ready_at - born, first_at - born, tuple(target.phases.phases.items()))
    tell(f"{target.name}: first token {start.first_token_seconds:.1f} s after its process started")
    return [start]


def measure(target: Target, clients: Clients, workload: Workload, round_number: int) -> Run:
    """One measured run."""
    seen, usage = _metered(target, clients, workload, round_number)
    return Run(
        target=target.name,
        workload=workload.label,
        round_number=round_number,
        load=summarize(seen.times, streamed=workload.streamed),
        client_busy=seen.busy,
        usage=usage,
    )


def _metered(
    target: Target, clients: Clients, workload: Workload, round_number: int
) -> tuple[Seen, Usage | None]:
    if target.child is None:
        return target.run(clients, workload, round_number), None
    with Meter(target.child.pid, has_platform=target.has_platform) as meter:
        seen = target.run(clients, workload, round_number)
    seconds = max(one.last for one in seen.times) - min(one.sent for one in seen.times)
    return seen, meter.usage(seconds)


def _pairs(targets: Sequence[Target], workloads: Sequence[Workload]) -> Iterator[tuple[Target, Workload]]:
    return ((target, workload) for target in targets for workload in workloads if target.accepts(workload))


def _turned(targets: Sequence[Target], round_number: int) -> list[Target]:
    turn = round_number % len(targets)
    return [*targets[turn:], *targets[:turn]]


def _line(run: Run) -> str:
    figures = f"{run.load.tokens_per_second:.0f} tok/s"
    if run.load.ttft.p50 is not None:
        figures += f", ttft p50 {run.load.ttft.p50 * 1e3:.0f} ms"
    if run.load.failed:
        figures += f", {run.load.failed} failed"
    return f"round {run.round_number + 1}, {run.workload}, {run.target}: {figures}"
