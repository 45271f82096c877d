"""The worker's sign of life: a small file that says whether it starts, serves or leaves.

`worker-vllm health` reads it, which is what a container's health check runs: RunPod itself goes by the SDK's
pings and looks at no health check, but Docker, Compose and Kubernetes do. The file is touched from the job
loop, so a loop that is blocked shows, which a process that merely exists would not.
"""

from __future__ import annotations

import json
import logging
import os
import time
from pathlib import Path
from typing import Literal

State = Literal["starting", "serving", "leaving", "refusing"]

BEAT_SECONDS = 5.0
"""How often the file is touched while the worker serves."""
SILENCE_SECONDS = 30.0
"""How long it may go untouched: several beats, and the pauses of a busy loop."""

logger = logging.getLogger(__name__)


class Sign:
    """Writes the sign.

    Args:
        path: the file; None writes none.
    """

    def __init__(self, path: str | None) -> None:
        self._path = None if path is None else Path(path)
        self._next_beat = 0.0

    def starting(self, phase: str) -> None:
        """A phase of the start begins."""
        self._write("starting", phase)

    def serving(self) -> None:
        """Jobs are taken from now on."""
        self._write("serving", "")

    def leaving(self, reason: str) -> None:
        """No job is taken any more."""
        self._write("leaving", reason)

    def refusing(self, reason: str) -> None:
        """The start has failed, and every job is answered with the reason."""
        self._write("refusing", reason)

    def beat(self) -> None:
        """The job loop runs. Called often, touches the file seldom."""
        now = time.monotonic()
        if self._path is None or now < self._next_beat:
            return
        self._next_beat = now + BEAT_SECONDS
        try:
            os.utime(self._path)
        except OSError as error:
            self._give_up(error)

    def _write(self, state: State, detail: str) -> None:
        if self._path is None:
            return
        sign = {"pid": os.getpid(), "state": state, "detail": detail, "since": time.time()}
        draft = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(sign), encoding="utf-8")
            draft.replace(self._path)
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """A full disk must not end a worker that serves; a sign that is missing counts as unhealthy."""
        logger.warning("WORKER_STATE_FILE=%s cannot be written (%s)", self._path, error.strerror)
        self._path = None


def read(path: Path, now: float | None = None) -> tuple[bool, str]:
    """Whether the worker serves, and its state in a few words.

    Args:
        now: the time, in seconds since the epoch; that of the clock if None.
    """
    now = time.time() if now is None else now
    try:
        sign = json.loads(path.read_text(encoding="utf-8"))
        pid, state, detail, since = (sign[name] for name in ("pid", "state", "detail", "since"))
        silent = now - path.stat().st_mtime
    except FileNotFoundError:
        return False, f"no worker has written {path}"
    except (OSError, ValueError, KeyError, TypeError):
        return False, f"{path} is no sign of a worker"
    if not Path(f"/proc/{pid}").exists():
        return False, f"the worker (process {pid}) has ended while it was {state}"
    if state != "serving":
        return False, f"{state}: {detail}, for {now - since:.0f} s"
    if silent > SILENCE_SECONDS:
        return False, f"serving, but without a sign of life for {silent:.0f} s"
    return True, f"serving, for {now - since:.0f} s"
