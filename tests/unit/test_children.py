"""Forked processes end with their parent, and so do theirs."""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from worker_vllm import children

# A parent that forks a child, which forks another one; in a thread where it is told so.
FAMILY = """
import os, sys, threading, time
sys.path.insert(0, "src")
from worker_vllm import children

def family():
    with children.tied():
        if os.fork() == 0:
            if os.fork() == 0:
                os.write(1, b"%d\\n" % os.getpid())
                time.sleep(30)
            os.write(1, b"%d\\n" % os.getpid())
            time.sleep(30)

if sys.argv[1:] == ["thread"]:
    thread = threading.Thread(target=family)
    thread.start()
    thread.join()
else:
    family()
time.sleep(30)
"""


def begin(*arguments: str) -> tuple[subprocess.Popen[str], list[int]]:
    command = [sys.executable, "-S", "-c", FAMILY, *arguments]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, [int(parent.stdout.readline()) for _ in range(2)]


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def end(parent: subprocess.Popen[str]) -> None:
    parent.kill()
    parent.wait()
    assert parent.stdout is not None
    parent.stdout.close()


def test_the_engine_and_its_workers_end_with_a_worker_that_is_killed() -> None:
    parent, family = begin()
    assert all(map(lives, family))
    end(parent)
    deadline = time.monotonic() + 5
    while any(map(lives, family)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_the_end_of_a_thread_that_forked_is_no_death() -> None:
    parent, family = begin("thread")
    time.sleep(0.1)
    assert all(map(lives, family))
    end(parent)
    for pid in family:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(("name", "is_tied"), [("__mp_main__", True), ("handler", False)])
def test_a_spawned_child_which_runs_the_entry_again_is_tied_there(
    monkeypatch: pytest.MonkeyPatch, name: str, is_tied: bool
) -> None:
    tied: list[bool] = []
    monkeypatch.setattr(children, "end_with_parent", lambda: tied.append(True))
    runpy.run_path("src/handler.py", run_name=name)
    assert bool(tied) is is_tied


def test_a_child_whose_parent_has_ended_before_it_could_be_tied_ends_too() -> None:
    if (child := os.fork()) == 0:
        children.end_with_parent(-1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
