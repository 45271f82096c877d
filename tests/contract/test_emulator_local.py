"""`worker-vllm local` as a command: ready line, exit codes, the Hub's tests, and nothing left behind."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest
import requests

from tests.contract.emulator_process import (
    command,
    descendants,
    environment,
    hub_file,
    living,
    local_process,
    run_local,
)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_everything_with_0(number: int, tmp_path: Path) -> None:
    with local_process(
        "--workers", "2", worker="tiny_worker.py", log=tmp_path / "log", TINY_GRANDCHILD="1"
    ) as local:
        family = descendants(local.process.pid)
        assert len(family) == 4
        assert requests.get(f"{local.url}/health", timeout=5).json()["workers"]["idle"] == 2
        assert local.stop(number) == 0
        assert living(family) == set()


def test_a_second_signal_does_not_wait_for_the_grace(tmp_path: Path) -> None:
    with local_process(
        "--set", "worker_grace_s=60", "--set", "min_wait_ms=10", worker="tiny_worker.py", log=tmp_path / "log"
    ) as local:
        requests.post(f"{local.url}/runsync?wait=300", json={"input": {"hang": True}}, timeout=5)
        family = descendants(local.process.pid)
        local.process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            local.process.wait(0.5)
        assert local.stop(signal.SIGTERM) == 0
        assert living(family) == set()


def test_the_end_of_the_platform_by_sigkill_ends_the_worker_too(tmp_path: Path) -> None:
    with local_process(worker="tiny_worker.py", log=tmp_path / "log", TMPDIR=str(tmp_path)) as local:
        family = descendants(local.process.pid)
        local.stop(signal.SIGKILL)
        for _ in range(100):
            if not living(family):
                break
            signal.sigtimedwait([], 0.05)
        assert living(family) == set()


def test_a_signal_before_ready_has_the_signal_s_code() -> None:
    with subprocess.Popen(
        command("--worker-command", "sleep 600", worker="tiny_worker.py"),
        env=environment(),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        family: set[int] = set()
        for _ in range(200):
            family = descendants(process.pid)
            if family:
                break
            signal.sigtimedwait([], 0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 128 + signal.SIGTERM
        assert living(family) == set()


def test_a_worker_that_cannot_start_gives_its_code_and_its_reason_as_the_last_line() -> None:
    found = run_local(worker="tiny_worker.py", TINY_FAILS="3")
    assert found.returncode == 3
    lines = found.stdout.splitlines()
    assert "worker-0 | noise" in lines
    assert lines[-1] == "tiny worker cannot start: told to fail"
    assert not any(line.startswith("ready") for line in lines)


def test_the_worker_s_output_goes_to_the_terminal_and_to_the_log(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    with local_process("--worker-log", str(log), worker="tiny_worker.py", log=tmp_path / "err") as local:
        requests.post(f"{local.url}/run", json={"input": {"exit": 1}}, timeout=5)
        for _ in range(100):
            if "told to crash" in log.read_text():
                break
            signal.sigtimedwait([], 0.05)
    line = "worker-0 | worker summary: told to crash"
    assert line in log.read_text().splitlines()
    assert line in (tmp_path / "err").read_text().splitlines()


def test_without_workers_it_serves_one_started_by_hand(tmp_path: Path) -> None:
    with local_process("--workers", "0", worker="tiny_worker.py", log=tmp_path / "log") as local:
        assert descendants(local.process.pid) == set()
        job = requests.post(f"{local.url}/run", json={"input": 1}, timeout=5).json()
        taken = requests.get(f"{local.url}/job-take/mine?gpu=x&job_in_progress=0", timeout=5).json()
        assert taken["id"] == job["id"]


# --- the Hub's runner


def test_the_hub_s_tests_pass_with_the_real_sdk(tmp_path: Path) -> None:
    """No `?` in the take URL and no stream URL: batches are taken, and the aggregated result arrives."""
    file = hub_file(
        tmp_path,
        {"input": {"yields": ["a", "b"]}, "timeout": 20_000},
        {"input": {"openai_route": "/v1/chat/completions", "openai_input": {"messages": []}}},
        {"input": {"yields": ["x" * 10_001]}},
    )
    found = run_local("--hub-test", str(file), worker="echo_worker.py", HOME=os.fspath(tmp_path))
    lines = found.stdout.splitlines()
    assert found.returncode == 0, found.stdout
    assert 'PASS t0: COMPLETED ["a", "b"]' in lines
    assert any(line.startswith("PASS t1: COMPLETED [{") for line in lines)
    assert "PASS t2: COMPLETED (10005 characters)" in lines
    assert "3 of 3 hub tests passed" in lines
