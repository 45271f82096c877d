"""What the platform hears of a worker between its jobs' results: the jobs that run, nothing after its end."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.contract.scripted_platform import Platform, native, running_worker
from worker_vllm.serverless import sdk


def test_pings_name_the_jobs_that_run_and_end_with_the_engine(tmp_path: Path) -> None:
    platform = Platform()
    platform.start()
    try:
        with running_worker(platform, tmp_path) as worker:
            platform.wait_for(lambda: platform.pings, 90)
            platform.offer(native("runs", ["sleep", 1.5]))
            platform.wait_for(lambda: platform.pings[-1][1] == "runs", 10)
            platform.offer(native("kills", ["die"], ["stuck"]))
            assert worker.process.wait(12) == 4
            last = len(platform.pings)
            time.sleep(1.2)  # the interval is a second
            assert len(platform.pings) == last
    finally:
        platform.stop()


async def test_the_ids_of_jobs_that_come_together_are_written_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from runpod.serverless.modules.worker_state import JobsProgress

    monkeypatch.setattr(JobsProgress, "_notify_mirror", JobsProgress._notify_mirror)
    sdk._tell_ping_once_a_turn()
    written: list[str | None] = []

    class Mirror:
        """Where the SDK writes them for the ping process."""

        def set(self, ids: str | None) -> None:
            written.append(ids)

    jobs = JobsProgress()
    monkeypatch.setattr(jobs, "_mirror", Mirror())
    names = {f"job-{number}" for number in range(100)}
    for name in names:
        jobs.add(name)
    await asyncio.sleep(0)
    assert [set((ids or "").split(",")) for ids in written] == [names]
    for name in names:
        jobs.remove(name)
    await asyncio.sleep(0)
    assert written[1:] == [None]
