"""Jobs on their way to the engine: a few at once, in order, and none holds up the others for long."""

from __future__ import annotations

import asyncio

from worker_vllm.engine.line import Line


async def test_jobs_that_come_together_are_through_one_after_the_other() -> None:
    line = Line(places=2)
    through: list[int] = []

    async def job(number: int) -> None:
        place = await line.enter()
        for _ in range(10):
            await asyncio.sleep(0)
        through.append(number)
        place.leave()

    jobs = [asyncio.create_task(job(number)) for number in range(6)]
    for _ in range(15):
        await asyncio.sleep(0)
    assert through == [0, 1]
    await asyncio.gather(*jobs)
    assert through == [0, 1, 2, 3, 4, 5]


async def test_a_job_that_waits_for_something_loses_its_place() -> None:
    line = Line(places=1, longest_seconds=0.01)
    slow = await line.enter()
    async with asyncio.timeout(1):
        quick = await line.enter()
    slow.leave()  # too late to count
    waiting = asyncio.create_task(line.enter())
    await asyncio.sleep(0)
    assert not waiting.done()
    quick.leave()
    (await waiting).leave()


async def test_a_job_that_is_cancelled_in_line_takes_no_place() -> None:
    line = Line(places=1, longest_seconds=60)
    first = await line.enter()
    cancelled = asyncio.create_task(line.enter())
    await asyncio.sleep(0)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    first.leave()
    async with asyncio.timeout(1):
        (await line.enter()).leave()
