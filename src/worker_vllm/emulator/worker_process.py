"""One worker as a child process: its own session, a fresh directory, its lines relayed, its descendants
ended with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence

from .processes import (
    MARKER,
    command_line,
    die_with_parent,
    is_tracker,
    marked_processes,
    signal_family,
)

LONGEST_PARTIAL_LINE_BYTES = 64 * 1024
OWN_END_S = 0.3
"""How long a dead worker's descendants have to end unasked; what lives then was left behind."""

ORPHANS_S = 1.0
"""How long they have to end once they are asked to."""

TRACKERS_S = 10.0
"""How long Python's resource trackers have after them; on a busy machine they need a while."""

LAST_WORDS_S = 2.0
"""How long to read on after a worker's end; its pipe can be held open by a process that escaped."""


class WorkerProcess:
    """A worker's process from start to end; made for one run.

    Args:
        command: what to execute.
        environment: complete; nothing is inherited besides.
        on_line: called with each line of its output, both streams together, without the line's end.

    Attributes:
        last_line: the last line that was not blank; "" when it said nothing.
        left: command lines of what it had started and not ended, once it has ended; Python's resource
            trackers left out, which end by themselves when all others have.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], on_line: Callable[[str], None]
    ) -> None:
        self._command = tuple(command)
        self._mark = secrets.token_hex(8)
        self._environment = {**environment, MARKER: self._mark}
        self._on_line = on_line
        self._process: asyncio.subprocess.Process | None = None
        self._ended = asyncio.Event()
        self._terminated = False
        self.last_line = ""
        self.left: tuple[str, ...] = ()

    @property
    def pid(self) -> int | None:
        """The worker's process id, which is also its group's and session's; None before the start."""
        return self._process.pid if self._process is not None else None

    async def run(self) -> int:
        """Start the worker and wait for its end, after which nothing it started is left.

        Returns its exit code as a shell would give it: 128 and the signal's number for a death by signal, 127
        when the command cannot be executed. Cancelling this kills the worker and waits for that.
        """
        try:
            with tempfile.TemporaryDirectory(prefix="worker-vllm-", ignore_cleanup_errors=True) as directory:
                return await self._run_in(directory)
        finally:
            self._ended.set()

    async def wait_ended(self, timeout_s: float) -> bool:
        """Wait until `run` is through; false when `timeout_s` passed first."""
        try:
            await asyncio.wait_for(self._ended.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def terminate(self) -> None:
        """Ask the worker alone to end: what it started is its own to end."""
        self._terminated = True
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the worker and everything it started, at once."""
        if self._process is not None and self._process.returncode is None:
            signal_family(self._process.pid, self._mark, signal.SIGKILL)

    async def _run_in(self, directory: str) -> int:
        # A pipe of our own: asyncio's would have wait() wait for all who hold it open, an orphaned pinger
        # too.
        read_end, write_end = os.pipe()
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                env=self._environment,
                cwd=directory,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=write_end,
                stderr=write_end,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        except OSError as error:
            os.close(read_end)
            self.last_line = f"cannot execute {self._command[0]}: {error.strerror}"
            return 127
        finally:
            os.close(write_end)
        reader = asyncio.create_task(self._read(read_end))
        if self._terminated:  # asked for while the process was being made
            self.terminate()
        try:
            code = await self._process.wait()
        finally:
            await asyncio.shield(self._clear(reader))
        return code if code >= 0 else 128 - code

    async def _clear(self, reader: asyncio.Task[None]) -> None:
        """End what the worker left, and read what was still said.

        Python's resource trackers are among what is left; they unlink shared memory once their processes are
        gone, and would leave it behind if they were killed at once.
        """
        assert self._process is not None
        if self._process.returncode is None:  # this run was cancelled
            self.kill()
        await self._process.wait()
        left = await self._wait_for_descendants(OWN_END_S)
        self.left = tuple(words for pid in left if (words := command_line(pid)) and not is_tracker(pid))
        signal_family(self._process.pid, self._mark, signal.SIGTERM)
        for pid in await self._wait_for_descendants(ORPHANS_S):
            if not is_tracker(pid):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        await self._wait_for_descendants(TRACKERS_S)
        signal_family(self._process.pid, self._mark, signal.SIGKILL)
        await asyncio.wait([reader], timeout=LAST_WORDS_S)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)

    async def _wait_for_descendants(self, seconds: float) -> list[int]:
        """Wait until they have ended; those that have not within `seconds`."""
        deadline = asyncio.get_running_loop().time() + seconds
        while (pids := marked_processes(self._mark)) and asyncio.get_running_loop().time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return pids

    async def _read(self, read_end: int) -> None:
        stream = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(stream), os.fdopen(read_end, "rb")
        )
        rest = b""
        try:
            while part := await stream.read(LONGEST_PARTIAL_LINE_BYTES):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    self._relay(line)
                if len(rest) > LONGEST_PARTIAL_LINE_BYTES:
                    self._relay(rest)
                    rest = b""
            if rest:
                self._relay(rest)
        finally:
            transport.close()

    def _relay(self, line: bytes) -> None:
        # A progress bar redraws its line with carriage returns: only its last state is worth a line.
        text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
        if text.strip():
            self.last_line = text.strip()
        self._on_line(text)
