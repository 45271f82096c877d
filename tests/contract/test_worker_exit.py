"""The ways out of service: engine death, stop signals, failed starts. Each ends with its own exit code, and
with nothing left behind.

Each test ends a worker of its own, with a platform of its own. They are all started at once, so that one's
imports run while another one's grace period does.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from tests.contract.scripted_platform import Platform, Worker, chat, is_running, native, running_worker

ITEM = {"choices": [{"tokens": ["x"]}]}
STUCK = ["stuck"]

ENVIRONMENTS = {
    "hangs": {"SCRIPT_STOP_HANGS": "1"},
    "dies": {},
    "dies, stock": {"SCRIPT_STOCK_SDK": "1"},
    "drains": {},
    "closing": {},
    "grace": {"SHUTDOWN_GRACE_S": "1"},
    "second signal": {"SHUTDOWN_GRACE_S": "60"},
    "killed": {},
    "no engine": {"SCRIPT_START_FAILS": "weights are larger than the GPU"},
    "answers": {"SCRIPT_START_FAILS": "no such model", "SCRIPT_ANSWERS": "1"},
    "no app": {"SCRIPT_READY_FAILS": "bad chat template"},
    "slow to get ready": {"SCRIPT_READY_SECONDS": "1.5"},
    "slow to start": {"SCRIPT_START_SECONDS": "60"},
    "never ready": {"SCRIPT_READY_SECONDS": "60", "SHUTDOWN_GRACE_S": "60"},
    "slow to clean up": {"SCRIPT_STOP_SECONDS": "60", "SCRIPT_ENGINE_PROCESS": "1"},
}


@dataclass
class Scene:
    platform: Platform
    worker: Worker

    def in_service(self) -> list[int]:
        """Wait for the first poll and ping; the worker's children."""
        self.platform.wait_for(lambda: self.platform.takes and self.platform.pings, 60)
        children = self.worker.children()
        assert children, "the ping process"
        return children

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.worker.process.send_signal(number)

    def exit_code(self, seconds: float = 8.0) -> int:
        return self.worker.process.wait(seconds)

    def error_of(self, job_id: str, seconds: float = 8.0) -> dict:
        return json.loads(self.platform.done(job_id, seconds)["error"])

    def nothing_is_left(self, children: list[int]) -> None:
        self.platform.wait_for(lambda: not any(is_running(child) for child in children), 5)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scene]]:
    with ExitStack() as stack:
        scenes = {}
        for name, environment in ENVIRONMENTS.items():
            platform = Platform()
            platform.start()
            stack.callback(platform.stop)
            directory = tmp_path_factory.mktemp(name.replace(" ", "-").replace(",", ""))
            worker = stack.enter_context(running_worker(platform, directory, **environment))
            scenes[name] = Scene(platform, worker)
        yield scenes


@pytest.fixture(scope="module")
def hanging(scenes: dict[str, Scene]) -> tuple[Scene, list[int]]:
    """A worker whose engine has just died, and whose clean-up hangs; looked at by the last test."""
    scene = scenes["hangs"]
    children = scene.in_service()
    scene.platform.offer(native("last", ["yield", ITEM], ["die"]))
    scene.platform.done("last")
    return scene, children


@pytest.mark.parametrize("name", ["dies", "dies, stock"])
def test_a_dead_engine_fails_every_job_and_ends_the_worker(
    scenes: dict[str, Scene], hanging: object, name: str
) -> None:
    scene, platform, worker = scenes[name], scenes[name].platform, scenes[name].worker
    children = scene.in_service()
    platform.offer(
        native("waits", STUCK),
        chat("streams", ["yield", "data: 1\n\n"], STUCK),
        native("told", ["sleep", 1.0], ["fail", "EngineDeadError", "the engine died"]),
    )
    platform.wait_for(lambda: platform.streamed("streams") and worker.began("told"))
    died_at = time.time()
    platform.offer(native("kills", ["die"], STUCK))
    for job_id in ("waits", "streams", "told", "kills"):
        error = scene.error_of(job_id)
        assert (error["type"], error["code"]) == ("EngineDeadError", 500)
    assert time.time() - died_at < 5
    assert platform.streamed("streams")[-1].endswith("data: [DONE]\n\n")
    assert scene.exit_code(10) == 4
    assert time.time() - died_at < 10
    scene.nothing_is_left(children)
    takes = len(platform.takes)
    time.sleep(0.3)
    assert len(platform.takes) == takes
    if name == "dies":
        assert [event["event"] for event in worker.events[-2:]] == ["host closed", "host stopped"]


def test_sigterm_lets_jobs_finish_and_exits_zero(scenes: dict[str, Scene]) -> None:
    scene, platform, worker = scenes["drains"], scenes["drains"].platform, scenes["drains"].worker
    children = scene.in_service()
    platform.offer(native("drains", ["yield", ITEM], ["sleep", 1.5], ["yield", ITEM]))
    platform.wait_for(lambda: platform.streamed("drains"))
    scene.stop()
    platform.wait_for(lambda: platform.takes[-1]["left"], 3)
    platform.offer(native("too-late", ["yield", ITEM]))
    assert platform.done("drains") == {"output": [ITEM, ITEM]}
    assert scene.exit_code() == 0
    assert not worker.began("too-late")
    assert [event["event"] for event in worker.events[-2:]] == ["host closed", "host stopped"]
    scene.nothing_is_left(children)


def test_a_job_handed_over_at_the_stop_is_run(scenes: dict[str, Scene]) -> None:
    scene, platform = scenes["closing"], scenes["closing"].platform
    scene.in_service()
    scene.stop()
    platform.offer(native("just-in-time", ["sleep", 0.5], ["yield", ITEM]))
    assert scene.exit_code() == 0
    given = sum(take["given"] for take in platform.takes)
    assert given == len([post for post in platform.posts if post.kind == "done"])


def test_the_grace_period_ends_jobs_with_a_retryable_error(scenes: dict[str, Scene]) -> None:
    scene, platform = scenes["grace"], scenes["grace"].platform
    scene.in_service()
    platform.offer(native("endless", ["yield", ITEM], STUCK))
    platform.wait_for(lambda: platform.streamed("endless"))
    scene.stop()
    assert scene.error_of("endless")["code"] == 503
    assert scene.exit_code() == 0


def test_a_second_signal_does_not_wait_for_the_grace_period(scenes: dict[str, Scene]) -> None:
    scene = scenes["second signal"]
    scene.in_service()
    scene.platform.offer(native("endless", STUCK))
    scene.platform.wait_for(lambda: scene.worker.began("endless"))
    scene.stop()
    time.sleep(0.3)
    scene.stop(signal.SIGINT)
    assert scene.error_of("endless")["code"] == 503
    assert scene.exit_code() == 0


def test_sigkill_takes_the_ping_process_along(scenes: dict[str, Scene]) -> None:
    scene = scenes["killed"]
    children = scene.in_service()
    scene.worker.process.kill()
    scene.worker.process.wait()
    scene.nothing_is_left(children)


def test_a_failed_start_takes_no_job_and_says_why_last(scenes: dict[str, Scene]) -> None:
    scene = scenes["no engine"]
    assert scene.exit_code(60) == 3
    assert scene.worker.log.splitlines()[-1] == "cannot start: weights are larger than the GPU"
    assert not scene.platform.takes


def test_a_worker_told_to_answer_fails_each_job_with_the_reason(scenes: dict[str, Scene]) -> None:
    scene = scenes["answers"]
    scene.platform.offer(native("first", ["yield", ITEM]), native("second", ["yield", ITEM]))
    for job_id in ("first", "second"):
        assert scene.error_of(job_id, 60)["message"] == "the worker cannot start: no such model"
    scene.stop()
    assert scene.exit_code() == 0


def test_an_app_that_cannot_be_built_is_a_failed_start(scenes: dict[str, Scene]) -> None:
    scene = scenes["no app"]
    assert scene.exit_code(60) == 3
    assert scene.worker.log.splitlines()[-1] == "cannot start: bad chat template"
    assert not scene.platform.takes
    assert scene.worker.events[-1]["event"] == "host stopped"


def test_no_job_is_taken_before_the_engine_is_ready(scenes: dict[str, Scene]) -> None:
    scene = scenes["slow to get ready"]
    scene.platform.offer(native("first", ["yield", ITEM]))
    assert scene.platform.done("first", 60) == {"output": [ITEM]}
    ready = next(event["at"] for event in scene.worker.events if event["event"] == "ready")
    assert scene.platform.takes[0]["at"] >= ready - 0.01


def test_sigterm_while_the_engine_starts_ends_it_at_once(scenes: dict[str, Scene]) -> None:
    scene = scenes["slow to start"]
    scene.platform.wait_for(lambda: scene.worker.events, 60)
    scene.stop()
    assert scene.exit_code() == 0
    assert scene.worker.log.splitlines()[-1] == "told to stop: ending at once"


def test_sigterm_while_the_app_is_prepared_ends_it_too(scenes: dict[str, Scene]) -> None:
    scene = scenes["never ready"]
    scene.platform.wait_for(lambda: "prepare the app" in scene.worker.log, 60)
    scene.stop()
    assert scene.exit_code() == 0
    assert not scene.platform.takes


def test_a_second_signal_does_not_wait_for_the_engines_clean_up(scenes: dict[str, Scene]) -> None:
    scene = scenes["slow to clean up"]
    children = scene.in_service()
    scene.stop()
    scene.platform.wait_for(lambda: scene.worker.events[-1]["event"] == "host stopped")
    scene.stop()
    assert scene.exit_code() == 0
    scene.nothing_is_left(children)


def test_a_dead_engine_ends_an_idle_worker_even_when_its_clean_up_hangs(
    hanging: tuple[Scene, list[int]],
) -> None:
    """Within ten seconds by the worker's own clock, which says so."""
    scene, children = hanging
    assert scene.exit_code(15) == 4
    assert "did not end by itself within 9.0 s" in scene.worker.log
    scene.nothing_is_left(children)
