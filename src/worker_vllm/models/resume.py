"""Go on inside a file that an earlier download left unfinished.

The hub library (2.4) writes each file to a part with a name of its own and deletes it when an attempt ends,
so that a file that was under way is fetched anew by the next attempt or process. While `parts_are_used` is in
force, a part is kept where the attempt breaks off, and the next one takes it over and asks for the rest, by
the library's own way to resume (a Range request). A file that was put together so is compared with its hash.

That is so over HTTP alone. What Xet has written of a file is not in order, and is not used.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

KEPT = "kept"
"""Stands in the name of a part that nobody writes to any more."""
STILL_SECONDS = 5.0
"""A part that has not grown for so long may be taken over. The library's lock on the file is held by then, so
this is only for file systems that do not honour locks; should its owner live after all, it finds its part
gone at the end and looks again."""

WORTH_BYTES = 64 * 1024**2
"""For a part of this size it is worth waiting until it may be taken over: a worker that waited for the file
gets the lock the moment its owner dies."""

_PART = re.compile(r"(?P<blob>[0-9a-f]{64})\.(?P<mark>\w+)\.incomplete")  # a large file's blob is its SHA-256
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
_CHUNK_BYTES = 8 * 1024**2


def takes_over() -> bool:
    """Whether parts are surely used: not where the hub may send a file by Xet."""
    from huggingface_hub import file_download

    sends_by_xet = getattr(file_download, "is_xet_available", None)
    return sends_by_xet is not None and not sends_by_xet()


@contextlib.contextmanager
def parts_are_used() -> Iterator[None]:
    """Let the hub library's downloads within the block begin with what others have left."""
    from huggingface_hub import file_download

    theirs = getattr(file_download, "http_get", None)
    if theirs is None:  # another version: it does as it does
        yield
        return

    def http_get(url: str, temp_file: BinaryIO, **how: Any) -> None:
        part = _PART.fullmatch(Path(temp_file.name).name)
        if part is None or "resume_size" in how:  # a small file, or a further try of the library's own
            theirs(url, temp_file, **how)
        else:
            _fetch(theirs, url, Path(temp_file.name), part["blob"], how)

    file_download.http_get = http_get  # there is no other way in
    try:
        yield
    finally:
        file_download.http_get = theirs


def _fetch(get: Callable[..., None], url: str, path: Path, blob: str, how: dict[str, Any]) -> None:
    """Fetch a file to `path`, what is left of it first."""
    size = how.get("expected_size")
    if not _left(path, blob, size) and max(map(_size, _others(path, blob)), default=0) >= WORTH_BYTES:
        time.sleep(STILL_SECONDS + 0.1)
    for left in _left(path, blob, size):
        with contextlib.suppress(OSError):
            left.replace(path)
            break
    try:
        with path.open("r+b") as file:
            here = file.seek(0, os.SEEK_END)
            get(url, file, resume_size=here, **how)
        if here and not _is_intact(path, blob):
            with path.open("wb") as file:
                get(url, file, **how)
    except BaseException as error:
        if getattr(error, "errno", None) not in _NO_ROOM:
            with contextlib.suppress(OSError):
                path.replace(path.with_name(f"{blob}.{KEPT}.incomplete"))
        raise


def _others(path: Path, blob: str) -> list[Path]:
    return [other for other in path.parent.glob(f"{blob}.*.incomplete") if other != path]


def _left(path: Path, blob: str, size: int | None) -> list[Path]:
    """The parts of `blob` that may be taken over, the largest first."""
    found: dict[Path, int] = {}
    for other in _others(path, blob):
        with contextlib.suppress(OSError):
            state = other.stat()
            is_still = f".{KEPT}." in other.name or time.time() - state.st_mtime > STILL_SECONDS
            if is_still and 0 < state.st_size <= (size or state.st_size):
                found[other] = state.st_size
    return sorted(found, key=lambda part: -found[part])


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # it has been finished or removed
        return 0


def _is_intact(path: Path, sha256: str) -> bool:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == sha256
