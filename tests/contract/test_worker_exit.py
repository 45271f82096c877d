"""The ways out of service: engine death, stop signals, failed starts. Each ends with its own exit code,
and with nothing left behind."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.scripted_platform import Platform, Worker, chat, is_running, native, running_worker

ITEM = {"choices": [{"tokens": ["x"]}]}
STUCK = ["stuck"]


@pytest.fixture
def platform() -> Iterator[Platform]:
    platform = Platform()
    platform.start()
    yield platform
    platform.stop()


def in_service(platform: Platform) -> None:
    platform.wait_for(lambda: platform.takes and platform.pings, 60)


def pings_end(worker: Worker, platform: Platform, children: list[int]) -> None:
    platform.wait_for(lambda: not any(is_running(child) for child in children), 5)


def code_of(platform: Platform, job_id: str) -> int:
    return json.loads(platform.done(job_id)["error"])["code"]


@pytest.mark.parametrize("stock", [False, True], ids=["changed SDK", "stock SDK"])
def test_a_dead_engine_fails_every_job_and_ends_the_worker(
    platform: Platform, tmp_path: Path, stock: bool
) -> None:
    extra = {"SCRIPT_STOCK_SDK": "1"} if stock else {}
    with running_worker(platform, tmp_path, **extra) as worker:
        in_service(platform)
        children = worker.children()
        platform.offer(
            native("waits", STUCK),
            chat("streams", ["yield", "data: 1\n\n"], STUCK),
            native("told", ["sleep", 1.0], ["fail", "EngineDeadError", "the engine died"]),
        )
        platform.wait_for(lambda: platform.streamed("streams") and worker.began("told"))
        died_at = time.time()
        platform.offer(native("kills", ["die"], STUCK))
        for job_id in ("waits", "streams", "told", "kills"):
            error = json.loads(platform.done(job_id, 6)["error"])
            assert (error["type"], error["code"]) == ("EngineDeadError", 500)
        assert time.time() - died_at < 5
        assert platform.streamed("streams")[-1].endswith("data: [DONE]\n\n")
        assert worker.process.wait(10) == 4
        assert time.time() - died_at < 10
        pings_end(worker, platform, children)
        takes = len(platform.takes)
        time.sleep(0.5)
        assert len(platform.takes) == takes
        if not stock:
            assert worker.events[-1]["event"] == "host stopped"


def test_a_dead_engine_ends_an_idle_worker_even_when_its_clean_up_hangs(
    platform: Platform, tmp_path: Path
) -> None:
    with running_worker(platform, tmp_path, SCRIPT_STOP_HANGS="1") as worker:
        in_service(platform)
        children = worker.children()
        began = time.time()
        platform.offer(native("last", ["yield", ITEM], ["die"]))
        assert platform.done("last")
        assert worker.process.wait(12) == 4
        assert time.time() - began < 11
        pings_end(worker, platform, children)


def test_sigterm_lets_jobs_finish_and_exits_zero(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path) as worker:
        in_service(platform)
        children = worker.children()
        platform.offer(native("drains", ["yield", ITEM], ["sleep", 1.5], ["yield", ITEM]))
        platform.wait_for(lambda: platform.streamed("drains"))
        worker.process.send_signal(signal.SIGTERM)
        platform.wait_for(lambda: platform.takes[-1]["left"], 3)
        platform.offer(native("too late", ["yield", ITEM]))
        assert platform.done("drains") == {"output": [ITEM, ITEM]}
        assert worker.process.wait(5) == 0
        assert not worker.began("too_late")
        assert [event["event"] for event in worker.events[-2:]] == ["host closed", "host stopped"]
        pings_end(worker, platform, children)


def test_a_job_handed_over_at_the_stop_is_run(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path) as worker:
        in_service(platform)
        worker.process.send_signal(signal.SIGTERM)
        platform.offer(native("just in time", ["sleep", 0.5], ["yield", ITEM]))
        assert worker.process.wait(10) == 0
        given = sum(take["given"] for take in platform.takes)
        assert given in (0, 1)
        assert given == len([post for post in platform.posts if post.kind == "done"])


def test_the_grace_period_ends_jobs_with_a_retryable_error(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path, SHUTDOWN_GRACE_S="1") as worker:
        in_service(platform)
        platform.offer(native("endless", ["yield", ITEM], STUCK))
        platform.wait_for(lambda: platform.streamed("endless"))
        worker.process.send_signal(signal.SIGTERM)
        assert code_of(platform, "endless") == 503
        assert worker.process.wait(5) == 0


def test_a_second_signal_does_not_wait_for_the_grace_period(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path, SHUTDOWN_GRACE_S="60") as worker:
        in_service(platform)
        platform.offer(native("endless", STUCK))
        platform.wait_for(lambda: worker.began("endless"))
        worker.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        worker.process.send_signal(signal.SIGINT)
        assert code_of(platform, "endless") == 503
        assert worker.process.wait(5) == 0


def test_sigkill_takes_the_ping_process_along(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path) as worker:
        in_service(platform)
        children = worker.children()
        assert children
        worker.process.kill()
        worker.process.wait()
        pings_end(worker, platform, children)


def test_a_failed_start_takes_no_job_and_says_why_last(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path, SCRIPT_START_FAILS="weights are larger than the GPU") as worker:
        assert worker.process.wait(20) == 3
        assert worker.log.splitlines()[-1] == "cannot start: weights are larger than the GPU"
        assert not platform.takes


def test_an_app_that_cannot_be_built_is_a_failed_start(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path, SCRIPT_READY_FAILS="bad chat template") as worker:
        assert worker.process.wait(20) == 3
        assert worker.log.splitlines()[-1] == "cannot start: bad chat template"
        assert not platform.takes
        assert worker.events[-1]["event"] == "host stopped"


def test_no_job_is_taken_before_the_engine_is_ready(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path, SCRIPT_READY_SECONDS="1.5") as worker:
        platform.offer(native("first", ["yield", ITEM]))
        assert platform.done("first", 30) == {"output": [ITEM]}
        ready = next(event["at"] for event in worker.events if event["event"] == "ready")
        assert platform.takes[0]["at"] >= ready - 0.01


def test_sigterm_while_the_engine_starts_ends_it_at_once(platform: Platform, tmp_path: Path) -> None:
    with running_worker(platform, tmp_path, SCRIPT_START_SECONDS="30") as worker:
        platform.wait_for(lambda: worker.events, 20)
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(5) == 0
