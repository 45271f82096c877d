"""The worker's sign of life, and what `worker-vllm health` makes of it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from worker_vllm import cli
from worker_vllm.phases import Phases
from worker_vllm.serverless import sign
from worker_vllm.serverless.sign import Sign


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state.json"


def health(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = cli.main(["health"], {"WORKER_STATE_FILE": str(path)})
    return code, capsys.readouterr().out.strip()


def test_a_worker_that_serves_is_healthy(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Sign(str(path)).serving()
    assert health(path, capsys) == (0, "serving, for 0 s")


def test_a_start_is_told_by_its_phase(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with Phases(Sign(str(path)).starting).phase("start the engine"):
        assert health(path, capsys) == (1, "starting: start the engine, for 0 s")


def test_a_worker_that_leaves_or_refuses_takes_no_jobs(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Sign(str(path)).leaving("told to stop")
    assert health(path, capsys) == (1, "leaving: told to stop, for 0 s")
    Sign(str(path)).refusing("MODEL_NAME is not set")
    assert health(path, capsys) == (1, "refusing: MODEL_NAME is not set, for 0 s")


def test_a_loop_that_stands_still_is_unhealthy(path: Path) -> None:
    writer = Sign(str(path))
    writer.serving()
    late = time.time() + sign.SILENCE_SECONDS + 1
    serves, words = sign.read(path, late)
    assert not serves
    assert words == "serving, but without a sign of life for 31 s"
    os.utime(path, (0, 0))
    assert not sign.read(path)[0]
    writer.beat()
    assert sign.read(path)[0]


def test_beats_are_seldom_written(path: Path) -> None:
    writer = Sign(str(path))
    writer.serving()
    writer.beat()
    os.utime(path, (0, 0))
    writer.beat()
    assert path.stat().st_mtime == 0


def test_a_worker_that_has_ended_is_told_from_one_that_serves(path: Path) -> None:
    Sign(str(path)).serving()
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, "pid": 2**22 + 1}))  # beyond what Linux gives out
    assert sign.read(path) == (False, "the worker (process 4194305) has ended while it was serving")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"pid": 1}', "\x00"])
def test_a_file_that_is_no_sign_is_unhealthy(path: Path, text: str) -> None:
    path.write_text(text)
    assert sign.read(path) == (False, f"{path} is no sign of a worker")


def test_without_a_file_nothing_is_healthy(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert health(path, capsys) == (1, f"no worker has written {path}")
    assert cli.main(["health"], {}) == 2
    assert "WORKER_STATE_FILE is not set" in capsys.readouterr().err


def test_no_file_is_written_unless_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    writer = Sign(None)
    writer.serving()
    writer.beat()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("act", [Sign.serving, lambda writer: writer.leaving("because")])
def test_a_sign_that_cannot_be_written_is_given_up_with_one_warning(
    tmp_path: Path, act: Any, caplog: pytest.LogCaptureFixture
) -> None:
    writer = Sign(str(tmp_path / "missing" / "state.json"))
    act(writer)
    act(writer)
    writer.beat()
    assert len(caplog.records) == 1
    assert "WORKER_STATE_FILE" in caplog.text
