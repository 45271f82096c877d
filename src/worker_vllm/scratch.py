"""A folder for what vLLM's processes write for a moment: sockets, and the file by which its workers meet.

vLLM leaves seven of them in the temporary folder at each start, however it ends. In a folder of their own
they go with the worker, and those of a worker that was killed go at the next start.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

PREFIX = "worker-vllm-engine-"
LONGEST_PATH = 107 - 40
"""A socket's whole path may have 107 bytes; vLLM names one with 36."""

_VARIABLE = "TMPDIR"
_INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"

# a few workers may start, and sweep, at the same moment
_TRIES = 10

_folder: str | None = None
_lock: int | None = None


@contextmanager
def in_use(environ: MutableMapping[str, str]) -> Iterator[None]:
    """In the block, the folder is the temporary folder of this process and of those that it starts; made if
    need be. `remove` takes it away.

    Args:
        environ: what started processes inherit.
    """
    usual = tempfile.gettempdir()
    folder = _make(usual)
    if folder is None:
        yield
        return
    before = environ.get(_VARIABLE)
    # what torch compiles is kept where it would be without this
    kept = _INDUCTOR not in environ
    if kept:
        environ[_INDUCTOR] = f"{usual}/torchinductor_{os.getuid()}"
    environ[_VARIABLE] = tempfile.tempdir = folder
    try:
        yield
    finally:
        tempfile.tempdir = usual
        if kept:
            environ.pop(_INDUCTOR, None)
        if before is None:
            environ.pop(_VARIABLE, None)
        else:
            environ[_VARIABLE] = before


def remove() -> None:
    """Take the folder away. Repeatable; without effect in a forked child."""
    global _folder, _lock
    if _folder is not None and _lock is not None and _owner(_folder) == os.getpid():
        shutil.rmtree(_folder, ignore_errors=True)
        os.close(_lock)
        _folder = _lock = None


def _make(parent: str) -> str | None:
    """The folder's path; None where it would be too long, or cannot be made and locked."""
    global _folder, _lock
    if _folder is not None:
        return _folder
    _sweep(parent)
    for _ in range(_TRIES):
        try:
            folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent)
        except OSError:
            return None
        if len(folder.encode()) > LONGEST_PATH:
            Path(folder).rmdir()
            return None
        if (lock := _locked(folder)) is not None:
            _folder, _lock = folder, lock
            return folder
    return None


def _locked(folder: str) -> int | None:
    """A descriptor that locks the folder as long as this process or one of its children lives: so the next
    worker knows what is in use. None where it cannot, or where a worker that starts at the same moment has
    swept the folder away before it was locked."""
    try:
        lock = os.open(folder, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if os.fstat(lock).st_ino == os.stat(folder).st_ino:  # noqa: PTH116
            return lock
    except OSError:
        pass
    os.close(lock)
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _sweep(parent: str) -> None:
    """Remove the folders that nobody holds."""
    for folder in Path(parent).glob(f"{PREFIX}*"):
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use
            pass
        finally:
            os.close(descriptor)


def _owner(folder: str) -> int:
    return int(Path(folder).name.removeprefix(PREFIX).partition("-")[0])
