"""Child processes: started in a session of their own, read line by line, and ended with all they started."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

STOP_GRACE_SECONDS = 30.0
"""How long a child may take to end after SIGTERM before it is killed."""

_SHOWN_LINES = 15


class ChildFailed(Exception):
    """A child process ended, or did not do in time what it was started for; the message ends with its last
    lines."""


class Child:
    """One child process. Close it with `stop`.

    Args:
        command: the program and its arguments.
        environ: its whole environment.
        log: file that its output is written to.
        on_line: called in a thread with each line of its output.
        talks: whether it answers lines of JSON on its standard output (see `ask`); its output is then what it
            writes to standard error.
    """

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        log: Path,
        *,
        on_line: Callable[[str], None] = lambda line: None,
        talks: bool = False,
    ) -> None:
        self.started_at = time.time()
        self._log = log
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=_SHOWN_LINES)
        self._process = subprocess.Popen(
            list(command),
            env=dict(environ),
            stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if talks else subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        output = self._process.stderr if talks else self._process.stdout
        assert output is not None
        self._reader = threading.Thread(target=self._read, args=(output,), daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """The process id, which is also its group's."""
        return self._process.pid

    def wait_until(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        """Wait for `condition`, which is asked twenty times a second.

        Raises ChildFailed when the process ends first or `timeout` seconds pass.
        """
        deadline = time.monotonic() + timeout
        while not condition():
            if self._process.poll() is not None:
                self._reader.join(timeout=5)
                if condition():
                    return
                raise ChildFailed(self._story(f"ended with code {self._process.returncode} before {what}"))
            if time.monotonic() > deadline:
                raise ChildFailed(self._story(f"took longer than {timeout:.0f} s to {what}"))
            time.sleep(0.05)

    def ask(self, message: object) -> dict[str, Any]:
        """Send one line of JSON and wait for the answer's line. Raises ChildFailed when the process ends
        instead."""
        self.tell(message)
        return self.answer()

    def tell(self, message: object) -> None:
        """Send one line of JSON."""
        assert self._process.stdin is not None
        try:
            print(json.dumps(message), file=self._process.stdin, flush=True)
        except OSError as error:
            raise ChildFailed(self._story("ended")) from error

    def answer(self) -> dict[str, Any]:
        """Wait for one line of JSON. Raises ChildFailed when the process ends instead."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._process.wait()
            self._reader.join(timeout=5)
            raise ChildFailed(self._story(f"ended with code {self._process.returncode}"))
        value: dict[str, Any] = json.loads(line)
        return value

    def stop(self) -> None:
        """End the process and everything in its tree: SIGTERM, a wait, then SIGKILL. May be called again."""
        # A child of the child may have a session of its own, so the group alone is not all.
        family = _family(self.pid)
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for process in family:
            if process.is_running():
                process.send_signal(signal.SIGKILL)
        self._reader.join(timeout=5)
        if self._process.stdout is not None and self._process.stdin is not None:
            self._process.stdout.close()

    def _read(self, output: IO[str]) -> None:
        with self._log.open("a", encoding="utf-8") as log, output:
            for line in output:
                log.write(line)
                log.flush()
                self._tail.append(line.rstrip())
                self._on_line(line)

    def _story(self, what: str) -> str:
        return "\n".join(
            [f"{self._log.stem} {what} (log: {self._log})", *(f"  {line}" for line in self._tail)]
        )


def _family(pid: int) -> list[Any]:
    import psutil

    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []
