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
_from_main_thread = False
_hooked = False


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that made it ends; call it as soon as it runs."""
    parent = os.getppid()
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
    global _from_main_thread
    _from_main_thread = threading.current_thread() is threading.main_thread()


def _tie() -> None:
    if _tying and _from_main_thread:
        end_with_parent()
