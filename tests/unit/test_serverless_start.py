"""Start-up in the main thread, as far as it can be told without a platform."""

from __future__ import annotations

import asyncio
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import repositories
from tests.cases import facts
from tests.configurations import configure
from worker_vllm import doctor
from worker_vllm.configuration import Machine
from worker_vllm.errors import ConfigurationError, EngineStartError, StartupFailure
from worker_vllm.phases import Phases
from worker_vllm.serverless import start

LIVE = "https://api.runpod.ai/v2/abc/job-take/$ID?gpu=x"
PERMANENT = ConfigurationError(["A=1: expected a word"])


@pytest.mark.parametrize(
    ("failure", "choice", "url", "stays"),
    [
        (PERMANENT, "answer", LIVE, True),
        (EngineStartError("gated model", permanent=True), "answer", LIVE, True),
        (EngineStartError("out of memory"), "answer", LIVE, False),
        (PERMANENT, "exit", LIVE, False),
        (PERMANENT, "", LIVE, False),
        (PERMANENT, "answer", "http://127.0.0.1:8020/v2/local/job-take/$ID?gpu=x", False),
        (PERMANENT, "answer", "http://0.0.0.0:80/v2/IDE/job-take/pod", False),
        (PERMANENT, "answer", "", False),
    ],
)
def test_a_worker_stays_up_for_permanent_faults_on_the_live_platform_only(
    failure: StartupFailure, choice: str, url: str, stays: bool
) -> None:
    environ = {"STARTUP_FAILURE": choice, "RUNPOD_WEBHOOK_GET_JOB": url}
    assert start.stays_up(failure, environ) is stays


def test_each_refused_job_is_a_line_also_where_the_configuration_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Any] = []

    def serve(handler: Any, **_: Any) -> None:
        async def run() -> None:
            given.extend([chunk async for chunk in handler({"id": "j-1"})])

        asyncio.run(run())

    monkeypatch.setattr(start.sdk, "load", lambda: serve)
    assert start.answer(PERMANENT, {"RUNPOD_WEBHOOK_GET_JOB": LIVE}) == 0
    assert "A=1: expected a word" in given[0]["error"]
    assert "job j-1 refused" in capsys.readouterr().out


def test_bringing_a_model_is_a_phase_of_its_own_and_a_local_one_is_not_downloaded(tmp_path: Path) -> None:
    folder = repositories.write(tmp_path / "model", repositories.sharded())
    phases = Phases()
    placed = start.bring_model(configure(MODEL_NAME=str(folder)), {}, phases)
    assert placed.engine["model"].value == str(folder)
    assert list(phases.seconds) == ["resolve the model", "examine model and GPUs"]


def test_what_cannot_work_ends_the_start_before_the_engine_is_built(tmp_path: Path) -> None:
    folder = repositories.write(tmp_path / "model", repositories.sharded(max_position_embeddings=2048))
    configuration = configure(MODEL_NAME=str(folder), MAX_MODEL_LEN="999999999")
    with pytest.raises(ConfigurationError, match=r"max-model-len: MAX_MODEL_LEN=999999999 is above"):
        start.bring_model(configuration, {}, Phases())


def test_weights_larger_than_the_gpu_are_no_fault_that_a_restart_mends() -> None:
    configuration = configure(MODEL_NAME="big", machine=Machine("cuda", gpus=1))
    with pytest.raises(EngineStartError, match="weights") as caught:
        doctor.before_start(configuration, facts("llama-3.3-70b"), {}, doctor.asked_for("1xL4"))
    assert caught.value.permanent


def test_what_may_go_wrong_is_a_line_of_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = repositories.write(tmp_path / "model", repositories.sharded())
    configuration = configure(MODEL_NAME=str(folder), DISTRIBUTED_EXECUTOR_BACKEND="ray")
    start.bring_model(configuration, {}, Phases())
    (line,) = (record for record in caplog.records if "ray-on-one-node" in record.message)
    assert line.levelname == "WARNING"
    assert "\n" not in line.message


def test_a_model_that_is_nowhere_ends_the_start_before_an_engine_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start.sdk, "prepare", lambda _: None)
    monkeypatch.setattr(start.health, "adopt_orphans", lambda: None)
    monkeypatch.setattr(start.checks, "check_machine", list)

    def never(*_: object) -> start.Engines:
        raise AssertionError("an engine was built")

    with pytest.raises(ConfigurationError, match="there is no such path on this machine"):
        start.run(configure(MODEL_NAME="/nonexistent"), {}, never)


class Ended(BaseException):
    """In the place of the process's end."""


def test_a_stop_signal_while_the_sdk_loads_ends_the_process_and_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def exit_now(code: int) -> None:
        raise Ended(code)

    def load() -> None:
        signal.raise_signal(signal.SIGTERM)

    host = SimpleNamespace(capacity=1, stop=lambda: None)
    for name, stub in {"prepare": lambda _: None, "load": load}.items():
        monkeypatch.setattr(start.sdk, name, stub)
    monkeypatch.setattr(start.health, "adopt_orphans", lambda: None)
    monkeypatch.setattr(start.health, "exit_now", exit_now)
    monkeypatch.setattr(start.health, "end_children", lambda: None)  # this process has some of its own
    monkeypatch.setattr(start.checks, "check_machine", list)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Ended, match="0"):
        start.run(
            configure(MODEL_NAME="a"),
            {},
            lambda *_: start.Engines(host, None, None),  # type: ignore[arg-type]
            bring=lambda configuration, *_: configuration,
        )
    assert signal.getsignal(signal.SIGTERM) is before


class HangingHost:
    """An engine whose clean-up waits until its processes are gone."""

    def __init__(self) -> None:
        self.gone = threading.Event()
        self.seen: list[bool] = []

    def stop(self) -> None:
        self.seen.append(self.gone.is_set())
        assert self.gone.wait(5)


@pytest.mark.parametrize("is_dead", [True, False])
def test_an_engine_that_does_not_end_is_killed_before_vllm_kills_its_resource_trackers(
    monkeypatch: pytest.MonkeyPatch, is_dead: bool
) -> None:
    host = HangingHost()
    monkeypatch.setattr(start, "ENGINE_END_SECONDS", 0.02)
    monkeypatch.setattr(start.health, "end_children", host.gone.set)
    start._end(host, is_dead=is_dead)  # type: ignore[arg-type]
    assert host.seen == [is_dead], "one that is dead is not waited for"
