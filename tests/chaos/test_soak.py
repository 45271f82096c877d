"""Many short jobs: memory, descriptors and latency stay where they were. SOAK_JOBS=10000 is the full form."""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from tests.chaos import remains
from tests.chaos.arena import Arena, arena
from tests.chaos.cases import PROMPTS, Case, RealTarget, read

JOBS = int(os.environ.get("SOAK_JOBS", "500"))
FULL = JOBS >= 10_000
CLIENTS = 8
TOKENS = 4
SAMPLES = 40
WARM_UP = 0.2
"""The share of the jobs that caches and pools need to fill."""
GROWTH = 1.05
LATENCY_NOISE = 1.5 if FULL else 3.0
"""Others use this machine, too: the medians of two equal runs differ by as much."""


@dataclass(frozen=True)
class Sample:
    """What the worker's processes hold."""

    front_bytes: int
    engine_bytes: int
    descriptors: int


def look(scene: Arena) -> Sample:
    below = remains.descendants(scene.pid)
    engines = [pid for pid in below if "VLLM" in remains.command_line(pid)]
    return Sample(
        remains.resident_bytes(scene.pid),
        sum(map(remains.resident_bytes, engines)),
        sum(map(remains.open_descriptors, [scene.pid, *below])),
    )


async def soak(scene: Arena) -> tuple[list[Sample], list[float]]:
    """Samples over the run, and each job's seconds in the order of their ends."""
    target, seconds, samples = scene.target, [], []
    cases = [Case(kind, prompt, TOKENS) for kind in target.kinds for prompt in PROMPTS]
    texts = {case: await scene.text(case) for case in cases}

    async def client(numbers: Iterator[int]) -> None:
        for number in numbers:
            case, began = cases[number % len(cases)], time.monotonic()
            job_id = await scene.submit(target.job_input(case, stream=number % 2 == 0))
            job = scene.queue.get(job_id)
            assert await job.wait_ended(60), scene.last_words()
            seconds.append(time.monotonic() - began)
            assert read(job.output).text == texts[case]
            # the platform of a test must not be what grows
            scene.tap.histories.pop(job_id)
            scene.queue.keep_for(job, 0)
            if number % (JOBS // SAMPLES) == 0:
                samples.append(look(scene))

    numbers = iter(range(JOBS))
    await asyncio.gather(*(client(numbers) for _ in range(CLIENTS)))
    return samples, seconds


def growth(samples: list[Sample], figure: Callable[[Sample], int]) -> float:
    """The last tenth's mean over the first tenth's after the warm-up."""
    warm = samples[int(len(samples) * WARM_UP) :]
    few = max(1, len(samples) // 10)
    return statistics.mean(map(figure, warm[-few:])) / statistics.mean(map(figure, warm[:few]))


@pytest.mark.engine
@pytest.mark.timeout(3600)
async def test_short_jobs_leave_memory_descriptors_and_latency_where_they_were() -> None:
    began = time.monotonic()
    async with arena(RealTarget()) as scene:
        started = time.monotonic()
        samples, seconds = await soak(scene)
        took = time.monotonic() - started
    tenth = JOBS // 10
    first, last = statistics.median(seconds[:tenth]), statistics.median(seconds[-tenth:])
    grown = {
        "worker's memory": growth(samples, lambda sample: sample.front_bytes),
        "engine's memory": growth(samples, lambda sample: sample.engine_bytes),
        "descriptors": growth(samples, lambda sample: sample.descriptors),
    }
    print(
        f"\n{JOBS} jobs in {took:.0f} s after {started - began:.0f} s of start; {samples[0]} to {samples[-1]}"
    )
    print(", ".join(f"{name} x{by:.3f}" for name, by in grown.items()))
    print(f"median latency of the first {tenth}: {first * 1000:.0f} ms, of the last: {last * 1000:.0f} ms")
    assert {name: by for name, by in grown.items() if by > GROWTH} == {}
    assert last < first * LATENCY_NOISE
    assert scene.remains == []
