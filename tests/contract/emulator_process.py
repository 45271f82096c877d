"""`worker-vllm local` as a user starts it: a process, its ready line, its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

WORKERS = Path(__file__).parent / "workers"
SOURCE = Path(__file__).parents[2] / "src"


def worker_command(name: str) -> str:
    """The --worker-command for a script of tests/contract/workers."""
    return f"{sys.executable} {WORKERS / name}"


def command(*arguments: str, worker: str | None) -> list[str]:
    workers = ("--worker-command", worker_command(worker)) if worker else ()
    return [sys.executable, "-m", "worker_vllm", "local", "--port", "0", *workers, *arguments]


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(SOURCE), **extra}


class LocalProcess:
    """A running platform."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.url = ""

    def wait_ready(self) -> None:
        """Read up to the ready line."""
        line = self._stdout.readline()
        assert line.startswith("ready http://127.0.0.1:"), line
        self.url = line.split()[1]

    def stop(self, number: int, timeout: float = 20.0) -> int:
        """Send a signal; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(timeout)

    @property
    def _stdout(self) -> IO[str]:
        assert self.process.stdout is not None
        return self.process.stdout


@contextmanager
def local_process(*arguments: str, worker: str | None, log: Path, **extra: str) -> Iterator[LocalProcess]:
    """A platform that is ready, with a scripted worker, or the real one for None. It is killed at the end if
    it still runs; `log` gets its standard error."""
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command(*arguments, worker=worker),
            env=environment(**extra),
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        local = LocalProcess(process)
        try:
            local.wait_ready()
            yield local
        finally:
            if process.poll() is None:
                local.stop(signal.SIGTERM)


def run_local(*arguments: str, worker: str, **extra: str) -> subprocess.CompletedProcess[str]:
    """A platform that ends by itself; both its streams as one text, as a terminal shows them."""
    return subprocess.run(
        command(*arguments, worker=worker),
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def hub_file(folder: Path, *tests: dict[str, Any]) -> Path:
    """A tests.json with these tests, named t0, t1 …"""
    file = folder / "tests.json"
    file.write_text(json.dumps({"tests": [{"name": f"t{n}", **test} for n, test in enumerate(tests)]}))
    return file


def descendants(pid: int) -> set[int]:
    """Every process that stands below this one now."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            found.add(child)
            waiting.append(child)
    return found


def living(pids: set[int]) -> set[int]:
    """Those of them that still run."""
    return {pid for pid in pids if Path(f"/proc/{pid}/stat").exists() and _state(pid) not in ("", "Z")}


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""
