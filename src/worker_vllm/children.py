"""Processes that end with their parent, however that ends.

vLLM's engine process outlives a parent that was killed, and goes on holding its GPU, where nobody is PID 1
to end it: the next worker finds no memory.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_PDEATHSIG = 1

_tying = False
_forking: int | None = None
"""The process that is about to fork in its main thread; None where another thread forks."""
_hooked = False


def end_with_parent(parent: int | None = None) -> None:
    """Let the kernel kill this process when the thread that made it ends; call it as soon as it runs.

    Args:
        parent: the process that made it, which may have ended by now; None where that is not known.
    """
    parent = os.getppid() if parent is None else parent
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def tied() -> Iterator[None]:
    """In the block, what this process forks in its main thread ends with it, and so do its children's
    children. Spawned processes start anew: `src/handler.py` ties those."""
    global _tying, _hooked
    if not _hooked:
        os.register_at_fork(before=_note_thread, after_in_child=_tie)
        _hooked = True
    _tying = True
    try:
        yield
    finally:
        _tying = False


def _note_thread() -> None:
    # the signal comes with the end of the thread that forked, which for any but the main one is no death
    global _forking
    _forking = os.getpid() if threading.current_thread() is threading.main_thread() else None


def _tie() -> None:
    if _tying and _forking is not None:
        end_with_parent(_forking)
