"""Child processes of the benchmark, with small programs in place of engines."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from worker_vllm.bench.process import Child, ChildFailed
from worker_vllm.bench.usage import Meter, roles

Start = Callable[..., Child]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a Python program; stopped at the end of the test."""
    with contextlib.ExitStack() as stack:

        def start_child(program: str, **options: object) -> Child:
            command = [sys.executable, "-u", "-c", program]
            child = Child(command, os.environ, tmp_path / "child.log", **options)  # type: ignore[arg-type]
            stack.callback(child.stop)
            return child

        yield start_child


def test_lines_reach_the_watcher_and_the_log(start: Start, tmp_path: Path) -> None:
    lines: list[str] = []
    child = start("print('ready')\nimport time; time.sleep(60)", on_line=lines.append)
    child.wait_until(lambda: "ready\n" in lines, "it was ready", 10)
    assert (tmp_path / "child.log").read_text(encoding="utf-8") == "ready\n"


def test_a_child_that_ends_too_early_is_reported_with_its_last_lines(start: Start) -> None:
    child = start("print('no such model'); raise SystemExit(3)")
    with pytest.raises(ChildFailed, match=r"ended with code 3 before it was ready(?s:.*)no such model"):
        child.wait_until(lambda: False, "it was ready", 10)


def test_a_child_that_takes_too_long_is_reported(start: Start) -> None:
    child = start("import time; time.sleep(60)")
    with pytest.raises(ChildFailed, match="took longer than 0 s to be there"):
        child.wait_until(lambda: False, "be there", 0.1)


def test_a_talking_child_answers_line_by_line(start: Start) -> None:
    child = start(
        "import json, sys\nfor line in sys.stdin: print(json.dumps({'twice': json.loads(line) * 2}))",
        talks=True,
    )
    assert child.ask(21) == {"twice": 42}
    assert child.ask(1) == {"twice": 2}


def test_a_talking_child_that_dies_is_reported_with_its_errors(start: Start) -> None:
    child = start("import sys; sys.stdin.readline(); sys.exit('out of memory')", talks=True)
    with pytest.raises(ChildFailed, match="out of memory"):
        child.ask(1)


def test_stop_ends_grandchildren_that_left_the_session(start: Start) -> None:
    """The platform gives each worker a session of its own, and a worker may ignore SIGTERM."""
    program = (
        "import signal, subprocess, sys, time\n"
        "stay = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)'\n"
        "print(subprocess.Popen([sys.executable, '-c', stay], start_new_session=True).pid)\n"
        "time.sleep(60)"
    )
    lines: list[str] = []
    child = start(program, on_line=lines.append)
    child.wait_until(lambda: bool(lines), "it was ready", 10)
    child.stop()
    deadline = time.monotonic() + 5
    while psutil.pid_exists(int(lines[0])) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(int(lines[0]))


def test_stop_may_be_called_again(start: Start) -> None:
    child = start("import time; time.sleep(60)")
    child.stop()
    child.stop()


def test_the_engines_processes_are_told_from_the_front_end(start: Start) -> None:
    """vLLM names its engine's process in the command line; a worker's other processes are its front end."""
    program = (
        "import subprocess, sys, time\n"
        "stay = 'import time; time.sleep(60)'\n"
        "names = ('VLLM::EngineCore', 'api')\n"
        "children = [subprocess.Popen([sys.executable, '-c', stay, name]) for name in names]\n"
        "print('ready'); time.sleep(60)"
    )
    lines: list[str] = []
    child = start(program, on_line=lines.append)
    child.wait_until(lambda: bool(lines), "it was ready", 10)
    found = roles(psutil.Process(child.pid), has_platform=True)
    assert found[psutil.Process(child.pid)][0] == "platform"
    assert sorted(role for role, _ in found.values()) == ["engine", "frontend", "platform"]


def test_a_meter_sees_cpu_and_memory_of_the_tree(start: Start) -> None:
    lines: list[str] = []
    child = start("print('ready')\nwhile True: pass", on_line=lines.append)
    child.wait_until(lambda: bool(lines), "it was ready", 10)
    with Meter(child.pid, has_platform=False) as meter:
        time.sleep(0.5)
    usage = meter.usage(0.5)
    assert usage.frontend_cpu_seconds > 0 and usage.platform_cpu_seconds == 0
    assert usage.tree_peak_bytes >= usage.frontend_peak_bytes > 1_000_000


def _alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
