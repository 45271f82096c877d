"""The order of things: start every target, let them take turns, stop them all.

Targets take turns within each round, because a machine's speed drifts, and what is compared must be measured
close together. The order turns round by round, so that none is always the first after a pause.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Literal

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

_WARM_UP_TOKENS = 32
"""Enough for every code path of a target to have run once; more would only cost time."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a session does.

    Attributes:
        workloads: each is run by every target that has its route.
        rounds: measured runs of each target under each workload.
        warm_up: whether an unmeasured, shorter run of each comes first.
        order: `in turn` starts one target after the other, and all stay up; `at once` starts them side by
            side, so that no start can be timed; `alone` has one up at a time, started anew in each round.
        settle_seconds: pause before each run beside other targets. Where vLLM has several processes, they go
            on looking for work for a second after their last, and take the CPUs of who is measured next.
    """

    workloads: Sequence[Workload]
    rounds: int = 3
    warm_up: bool = True
    order: Literal["in turn", "at once", "alone"] = "in turn"
    settle_seconds: float = 1.3


def carry_out(
    plan: Plan, targets: Sequence[Target], clients: Clients, tell: Tell
) -> tuple[list[Start], list[Run]]:
    """Do what the plan says; `tell` gets a line for each step.

    Raises ChildFailed or TargetError when a target fails; whatever was started is stopped in any case.
    """
    starts, runs = (_alone if plan.order == "alone" else _together)(plan, targets, clients, tell)
    if not runs:
        raise TargetError("no target has a route that was asked for (native jobs need a RunPod endpoint)")
    return starts, runs


def _together(
    plan: Plan, targets: Sequence[Target], clients: Clients, tell: Tell
) -> tuple[list[Start], list[Run]]:
    starts: list[Start] = []
    runs: list[Run] = []
    with contextlib.ExitStack() as stack:
        for target in targets:
            stack.callback(target.stop)
        if plan.order == "at once":
            _start_at_once(targets, clients, plan.workloads[0], tell)
        else:
            for target in targets:
                starts += bring_up(target, clients, plan.workloads[0], tell)
        for target in targets:
            _warm_up(plan, target, clients)
        for round_number in range(plan.rounds):
            for workload in plan.workloads:
                for target in _turned(targets, round_number):
                    if target.accepts(workload):
                        time.sleep(plan.settle_seconds if len(targets) > 1 else 0)
                        runs.append(measure(target, clients, workload, round_number))
                        tell(_line(runs[-1]))
    return starts, runs


def _alone(
    plan: Plan, targets: Sequence[Target], clients: Clients, tell: Tell
) -> tuple[list[Start], list[Run]]:
    starts: list[Start] = []
    runs: list[Run] = []
    for round_number in range(plan.rounds):
        for target in _turned(targets, round_number):
            with contextlib.ExitStack() as stack:
                stack.callback(target.stop)
                starts += bring_up(target, clients, plan.workloads[0], tell)
                _warm_up(plan, target, clients)
                for workload in filter(target.accepts, plan.workloads):
                    runs.append(measure(target, clients, workload, round_number))
                    tell(_line(runs[-1]))
    return starts, runs


def _start_at_once(targets: Sequence[Target], clients: Clients, workload: Workload, tell: Tell) -> None:
    tell(f"starting side by side: {', '.join(target.name for target in targets)}")
    with ThreadPoolExecutor(len(targets)) as threads:
        for started in [threads.submit(target.start) for target in targets]:
            started.result()
    for target in targets:
        _first_token(target, clients, workload)


def _warm_up(plan: Plan, target: Target, clients: Clients) -> None:
    if plan.warm_up:
        for workload in filter(target.accepts, plan.workloads):
            short = replace(workload, max_tokens=min(workload.max_tokens, _WARM_UP_TOKENS))
            target.run(clients, short, _WARM_UP_ROUND)


def bring_up(target: Target, clients: Clients, workload: Workload, tell: Tell) -> list[Start]:
    """Start one target, ask it for a first token, and time both; empty for a target that ran already.

    Raises ChildFailed when it does not start, TargetError when its first request fails.
    """
    tell(f"{target.name}: starting")
    target.start()
    ready_at = time.time()
    first_at = _first_token(target, clients, workload)
    born = target.born_at()
    if born is None:
        return []
    start = Start(target.name, ready_at - born, first_at - born, tuple(target.phases.phases.items()))
    tell(f"{target.name}: first token {start.first_token_seconds:.1f} s after its process started")
    return [start]


def _first_token(target: Target, clients: Clients, workload: Workload) -> float:
    """Ask for one short answer; the moment of its first token, in seconds since the epoch."""
    first = replace(workload, requests=1, concurrency=1, max_tokens=2, rate=None, streamed=True)
    if not target.accepts(first):
        first = replace(first, route="completions")
    seen = target.run(clients, first, _FIRST_ROUND).times[0]
    if seen.error is not None or seen.first is None:
        raise TargetError(f"{target.name}: the first request failed: {seen.error}")
    return seen.first + (time.time() - time.monotonic())


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
