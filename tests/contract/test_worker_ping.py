"""What the platform hears of a worker between its jobs' results: the jobs that run, nothing after its end."""

from __future__ import annotations

import time
from pathlib import Path

from tests.contract.scripted_platform import Platform, native, running_worker


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
