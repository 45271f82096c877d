"""Ending a worker's processes, all of them: the worker, its pinger, the engine, and what those started."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

MARKER = "WORKER_VLLM_LOCAL_MARK"
"""Environment variable by which a worker's descendants are known, also those in a session of their own."""

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent() -> None:
    """Have the kernel send SIGTERM to this process when its parent ends in whatever way (Linux).

    Runs between fork and exec, so it allocates nothing and imports nothing.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def signal_group(pid: int, number: int) -> None:
    """Send a signal to the process group that `pid` leads, if there still is one."""
    try:
        os.killpg(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def kill_descendants(group: int, mark: str) -> None:
    """SIGKILL to the group, then to every process that carries the mark (where /proc can tell)."""
    signal_group(group, signal.SIGKILL)
    for pid in marked_processes(mark):
        try:
            os.kill(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def marked_processes(mark: str) -> list[int]:
    """Living processes whose environment carries this mark; none where there is no /proc."""
    needle = f"{MARKER}={mark}".encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:  # ended meanwhile, a zombie, or another user's
            continue
    return found
