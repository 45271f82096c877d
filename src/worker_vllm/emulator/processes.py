"""Ending a worker's processes, all of them: the worker, its pinger, the engine, and what those started."""

from __future__ import annotations

import contextlib
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


def signal_family(leader: int, mark: str, number: int) -> None:
    """Send a signal to the leader's process group, and to all who carry the mark (where /proc can tell)."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)
    for pid in marked_processes(mark):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


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


def command_line(pid: int) -> str:
    """What a process calls itself; "" for one that has ended."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
    except OSError:
        return ""
    return words.decode(errors="replace").strip()


def is_tracker(pid: int) -> bool:
    """Whether it is one of Python's resource trackers."""
    return "multiprocessing.resource_tracker" in command_line(pid)
