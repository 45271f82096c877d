"""What the set-up shows: one line when a phase begins, one when it ends, and the seconds between.

Commands run with their output kept back, so that a failure can be told in one line and success says nothing.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

POLL_SECONDS = 0.2
FIRST_SIGN_SECONDS = 2.0
TERMINAL_EVERY_SECONDS = 1.0
LOG_EVERY_SECONDS = 15.0  # where nobody can see a line being rewritten, a CI log for instance


class CommandFailed(Exception):
    """A command ended with another code than 0. `output` is all it wrote."""

    def __init__(self, command: Sequence[str], code: int, output: str) -> None:
        super().__init__(f"{' '.join(command)} ended with code {code}")
        self.command = tuple(command)
        self.code = code
        self.output = output


class Console:
    """Phases and commands of one set-up, told on `stream`."""

    def __init__(self, environ: Mapping[str, str], stream: TextIO = sys.stdout) -> None:
        """`environ` is what commands see."""
        self._stream = stream
        self._environ = dict(environ)
        self._terminal = stream.isatty()

    def say(self, text: str) -> None:
        """Print one line at once."""
        self._stream.write(f"{self._line_start()}set-up: {text}\n")
        self._stream.flush()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Tell that `name` begins and, unless the block raises, how many seconds it took."""
        begun = time.monotonic()
        self._show(f"{name} …")
        yield
        self.say(f"{name} {time.monotonic() - begun:.1f} s")

    def run(
        self,
        command: Sequence[str],
        *,
        label: str,
        cwd: Path,
        variables: Mapping[str, str] | None = None,
        progress: Callable[[], str] | None = None,
    ) -> str:
        """Run `command` and return what it wrote; its standard input is empty.

        While it runs, a line with `label`, the seconds so far and `progress()` shows that it is alive. A
        command that is still running when this is interrupted is ended first. Raises CommandFailed.
        """
        environ = {**self._environ, **(variables or {})}
        with tempfile.TemporaryFile() as output:
            process = subprocess.Popen(
                command,
                cwd=cwd,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            try:
                self._watch(process, label, progress)
            finally:
                if process.poll() is None:
                    process.terminate()
                process.wait()
            output.seek(0)
            text = output.read().decode(errors="replace")
        if process.returncode:
            raise CommandFailed(command, process.returncode, text)
        return text

    def _watch(
        self, process: subprocess.Popen[bytes], label: str, progress: Callable[[], str] | None
    ) -> None:
        begun = time.monotonic()
        every = TERMINAL_EVERY_SECONDS if self._terminal else LOG_EVERY_SECONDS
        next_sign = FIRST_SIGN_SECONDS if self._terminal else LOG_EVERY_SECONDS
        while True:
            try:
                process.wait(timeout=POLL_SECONDS)
                return
            except subprocess.TimeoutExpired:
                seconds = time.monotonic() - begun
                if seconds >= next_sign:
                    next_sign = seconds + every
                    detail = f", {progress()}" if progress else ""
                    self._show(f"{label} … {seconds:.0f} s{detail}")

    def _show(self, text: str) -> None:
        """A line that the next one replaces on a terminal, and that stays in a log."""
        if self._terminal:
            self._stream.write(f"{self._line_start()}set-up: {text}")
        else:
            self._stream.write(f"set-up: {text}\n")
        self._stream.flush()

    def _line_start(self) -> str:
        return "\r\x1b[K" if self._terminal else ""
