"""A chaotic run: clients who want their jobs answered, and what happens to them meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

from tests.chaos import arena
from tests.chaos.arena import Arena, eventually
from tests.chaos.cases import Case, Target
from tests.chaos.ledger import Entry, Ledger
from tests.chaos.plan import DELAY_PROBABILITY, DELAY_SECONDS, PAUSE, STOP, JobPlan, Plan, Shot
from worker_vllm.emulator.faults import Fault, FaultKind

CLIENTS = 20
MOST_TRIES = 8
JOB_SECONDS = 240.0
"""No job may take longer from its first sending to its end, restarts of the worker included."""
BUSY_JOBS = 4
STRIKE_OUT_SECONDS = 15.0
ALL_ROUTES = ("job-take", "job-take-batch", "job-stop", "job-stream", "job-done", "ping")


async def run(target: Target, plan: Plan) -> Ledger:
    """Carry out a plan; the ledger is judged already."""
    async with arena.arena(target, plan.seed) as scene:
        texts = await exact_texts(scene, plan)
        ledger = Ledger(plan, scene, texts)
        scene.platform.faults.add("delay", ALL_ROUTES, probability=DELAY_PROBABILITY, seconds=DELAY_SECONDS)
        began = time.monotonic()
        entries = iter([Entry(job) for job in plan.jobs])
        happenings = asyncio.create_task(_happenings(scene, plan, ledger))
        try:
            await asyncio.gather(*(_client(scene, ledger, entries) for _ in range(CLIENTS)))
            await happenings
            await _strike_out(scene)
        finally:
            happenings.cancel()
        ledger.seconds = time.monotonic() - began
        scene.platform.faults.rules.clear()
        ledger.problems += await aftermath(scene, texts)
    ledger.entries.sort(key=lambda entry: entry.plan.number)
    ledger.judge()
    return ledger


async def exact_texts(scene: Arena, plan: Plan) -> dict[Case, str]:
    """The answers, taken one at a time before anything happens. Those to jobs that are too slow are not
    wanted."""
    cases = {job.case for job in plan.jobs if job.fate != "too slow"}
    return {case: await scene.text(case) for case in sorted(cases, key=str)}


async def aftermath(scene: Arena, texts: dict[Case, str]) -> list[str]:
    """What is wrong with the worker after everything: it must answer, and hold nothing."""
    problems = []
    case = min(texts, key=str)
    if await scene.text(case) != texts[case]:
        problems.append("after the end the worker gives another answer")
    if scene.target.metrics_route:
        await asyncio.sleep(0.5)
        job = await scene.answer({"route": scene.target.metrics_route, "method": "GET"})
        for line in str(job["output"][0]).splitlines():
            name, _, value = line.rpartition(" ")
            if name.startswith(("vllm:num_requests_", "vllm:kv_cache_usage_perc")) and float(value) != 0:
                problems.append(f"after the end: {line}")
    return problems


async def _client(scene: Arena, ledger: Ledger, entries: Iterator[Entry]) -> None:
    for entry in entries:
        began = time.monotonic()
        try:
            async with asyncio.timeout(JOB_SECONDS):
                await _settle(scene, ledger, entry)
        except TimeoutError:
            ledger.problems.append(f"job {entry.plan.number} was stuck for {JOB_SECONDS:.0f} s")
        entry.seconds = time.monotonic() - began
        ledger.entries.append(entry)


async def _settle(scene: Arena, ledger: Ledger, entry: Entry) -> None:
    """Send a job, and again where the worker failed under it."""
    plan = entry.plan
    job_input = scene.target.job_input(plan.case, stream=plan.stream)
    if plan.fate == "refused":
        job_input["temprature"] = 0
    policy = {"executionTimeout": scene.target.too_slow_ms} if plan.fate == "too slow" else {}
    for _ in range(MOST_TRIES):
        job_id = await scene.submit(job_input, **policy)
        if plan.fate == "cancelled":
            entry.cancel_reply = await _cancel(scene, plan, job_id)
        await scene.queue.get(job_id).wait_ended(JOB_SECONDS)
        job = await scene.call(f"status/{job_id}")
        entry.tries.append(job)
        if plan.fate == "cancelled" or not ledger.may_try_again(job):
            return


async def _cancel(scene: Arena, plan: JobPlan, job_id: str) -> str:
    """Cancel the job once it is in the phase that its plan names; the state that the platform answers."""
    job, history = scene.queue.get(job_id), scene.tap.histories[job_id]

    def over() -> bool:
        return job.state.terminal

    match plan.cancel_in:
        case "queued":
            pass
        case "taken":
            await eventually(lambda: bool(history.attempts) or over(), JOB_SECONDS)
        case "mid-stream":
            await eventually(lambda: bool(history.attempts) or over(), JOB_SECONDS)
            if plan.stream:
                await eventually(lambda: bool(history.attempts[-1].chunks) or over(), JOB_SECONDS)
            else:
                await asyncio.sleep(0.05)
        case "posting":
            route = "job-stream" if plan.stream else "job-done"
            held = _strike_next(scene, "delay", (route,), contains=job_id, times=1, seconds=0.5)
            await eventually(lambda: held.hits > 0 or over(), JOB_SECONDS)
            await asyncio.sleep(0.05)
        case "after the end":
            await eventually(over, JOB_SECONDS)
    return str((await scene.call(f"cancel/{job_id}"))["status"])


async def _happenings(scene: Arena, plan: Plan, ledger: Ledger) -> None:
    """Let each event happen when its time has come."""
    for event in plan.events:
        await eventually(lambda event=event: len(ledger.entries) >= event.after, 1e6)  # type: ignore[misc]
        if isinstance(event.what, Shot):
            _strike_next(scene, event.what.kind, event.what.routes, **event.what.options)
            continue
        await _busy(scene)
        if event.what == STOP:
            _stop_one(scene)
        elif event.what == PAUSE:
            await scene.pause(PAUSE)
        else:
            await scene.kill(str(event.what))


def _strike_next(scene: Arena, kind: FaultKind, routes: tuple[str, ...], **options: Any) -> Fault:
    """Add a fault that goes before those that strike at random."""
    faults = scene.platform.faults
    fault = faults.add(kind, routes, **options)
    faults.rules.insert(0, faults.rules.pop())
    return fault


async def _busy(scene: Arena) -> None:
    """Wait until the worker has several jobs at once; at a run's end it may have fewer."""
    deadline = time.monotonic() + 20.0
    while len(scene.tap.running(arena.WORKER)) < BUSY_JOBS and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def _strike_out(scene: Arena) -> None:
    """Let the faults strike that are still due: an idle worker polls and pings, too."""
    deadline = time.monotonic() + STRIKE_OUT_SECONDS
    while any(rule.times for rule in scene.platform.faults.rules) and time.monotonic() < deadline:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _stop_one(scene: Arena) -> None:
    """A stop message for a job that nobody has cancelled: it comes back when its pings are missed."""
    running = scene.tap.running(arena.WORKER)
    if running:
        scene.tap.histories[running[-1]].faults.append(STOP)
        scene.platform.registry.stop_job(arena.WORKER, running[-1])
