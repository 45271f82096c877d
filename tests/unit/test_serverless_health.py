"""The watch on the engine and the last resort."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker_vllm.serverless import health


async def test_the_watch_calls_once_when_the_engine_is_dead() -> None:
    looks = iter([False, False, True])
    deaths, ticks = [], []
    await health.watch(lambda: next(looks), lambda: deaths.append(1), ticks.append, interval_seconds=0.01)
    assert deaths == [1]
    assert len(ticks) == 2


async def test_a_pause_of_the_process_counts_as_two_intervals_at_most() -> None:
    looks = iter([False, True])
    ticks: list[float] = []

    def is_dead() -> bool:
        time.sleep(0.2)  # as after SIGSTOP and SIGCONT
        return next(looks)

    await health.watch(is_dead, lambda: None, ticks.append, interval_seconds=0.01)
    assert all(tick <= 0.02 for tick in ticks)


def progress(busy: list[bool], steps: list[int]) -> health.Progress:
    return health.Progress(lambda: busy[0], lambda: steps[0], limit_seconds=1.0)


def test_steps_and_idleness_are_progress() -> None:
    busy, steps = [True], [0]
    watched = progress(busy, steps)
    for _ in range(10):
        steps[0] += 1
        watched.tick(0.5)
    assert not watched.stalled
    watched.tick(0.5)
    busy[0] = False
    watched.tick(0.5)
    busy[0] = True
    watched.tick(0.5)
    assert not watched.stalled
    watched.tick(0.5)
    assert watched.stalled


def test_the_last_resort_ends_a_process_whose_main_thread_hangs() -> None:
    code = (
        "import time, sys; sys.path.insert(0, 'src'); from worker_vllm.serverless import health\n"
        "health.exit_later(0.1, lambda: 5); print('flushed', end=''); time.sleep(60)"
    )
    began = time.monotonic()
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30)
    assert (ended.returncode, ended.stdout) == (5, "flushed")
    assert time.monotonic() - began < 20


def test_the_last_resort_can_be_called_off() -> None:
    timer = health.exit_later(60, lambda: 5)
    timer.cancel()
    timer.join(5)
    assert not timer.is_alive()


def run_python(*lines: str) -> list[str]:
    """Run these lines, which end in `health.exit_now(4)`, and return the words that they print."""
    code = "\n".join(
        ("import sys; sys.path.insert(0, 'src')", "from worker_vllm.serverless import health", *lines)
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 4, ended.stderr
    return ended.stdout.split()


def test_exiting_takes_children_grandchildren_and_orphans_along() -> None:
    pids = run_python(
        "import subprocess",
        "def run(script):",
        "    shell = subprocess.Popen(['sh', '-c', script], stdout=subprocess.PIPE, text=True)",
        "    print(shell.stdout.readline(), flush=True)",
        "health.adopt_orphans()",
        "run('sleep 60 & echo $! $$; wait')",
        "run('sleep 60 & echo $!')",
        "health.exit_now(4)",
    )
    assert len(pids) == 3
    deadline = time.monotonic() + 5
    while any(map(lives, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_orphan_that_is_handed_on_while_they_are_counted_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shell that ends at that moment: its own children are this process's by then."""
    counts = iter([[-11], [-11, -12], [-11, -12]])
    killed: list[int] = []
    monkeypatch.setattr(health, "_descendants", lambda _: next(counts))
    monkeypatch.setattr(health.Path, "read_bytes", lambda _: b"sleep")
    monkeypatch.setattr(health.os, "kill", lambda pid, _: killed.append(pid))
    health.end_children()
    assert killed == [-11, -12]


def lives(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_pythons_resource_tracker_is_left_to_clean_up() -> None:
    """Shared memory that nobody has unlinked is gone when the last process is."""
    (name,) = run_python(
        "import time",
        "from multiprocessing import resource_tracker, shared_memory",
        "memory = shared_memory.SharedMemory(create=True, size=64)",
        "tracker = f'/proc/{resource_tracker._resource_tracker._pid}/cmdline'",
        "while 'import main' not in open(tracker).read(): time.sleep(0.01)",
        "print(memory.name); health.exit_now(4)",
    )
    deadline = time.monotonic() + 10
    while Path("/dev/shm", name).exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
