"""Bring a repository's files into a hub cache: the room is looked at first, and progress is told in lines.

The hub library does the downloading: it resumes what a broken connection cut off, keeps whole files of an
earlier attempt, and locks each file, so that two workers on one volume fetch each once. `resume` lets it go
on inside a file that an earlier attempt or a dead process left; remains that nobody can use are removed.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_vllm.errors import EngineStartError
from worker_vllm.models import hub_errors, resume
from worker_vllm.models.cache import DEFAULT_REVISION
from worker_vllm.models.hub import Hub, Listing, RemoteFile
from worker_vllm.models.hub_errors import Refusal

logger = logging.getLogger(__name__)

SPARE_BYTES = 256 * 1024**2
"""What is left free of a disk beside the files: logs, compile caches, the cache's own lists."""
MAX_ATTEMPTS = 30
"""Of one download in all; only those that bring nothing count towards `Hub.wait_seconds`."""
REMAINS_SECONDS = 3600.0
"""A part of a file that has not grown for so long belongs to nobody who lives."""
TELL_EVERY_SECONDS = 10.0

_GB = 1000**3


@dataclass(frozen=True)
class Download:
    """Files of one commit that are to be in a cache.

    Attributes:
        names: of the files, as the listing has them.
    """

    hub: Hub
    listing: Listing
    names: tuple[str, ...]

    @property
    def root(self) -> Path:
        """The repository's folder in the cache."""
        return self.hub.cache / "--".join(("models", *self.listing.repository.split("/")))

    @property
    def directory(self) -> Path:
        """Where the files will be."""
        return self.root / "snapshots" / self.listing.commit

    @property
    def files(self) -> Mapping[str, RemoteFile]:
        """The files, by name."""
        return {name: self.listing.files[name] for name in self.names}

    def bytes_here(self) -> int:
        """How much of it is in the cache, parts of files included."""
        sizes = _sizes(self.root / "blobs")
        here = 0
        for name, file in self.files.items():
            if self._is_whole(name, sizes):
                here += file.size
            else:
                parts = (size for part, size in sizes.items() if _is_part(part, file.blob))
                here += min(max(parts, default=0), file.size)
        return here

    def bytes_missing(self) -> int:
        """Bytes that the disk must still take; the rest of a file where its beginning will be used."""
        if resume.takes_over():
            return sum(file.size for file in self.files.values()) - self.bytes_here()
        sizes = _sizes(self.root / "blobs")
        return sum(file.size for name, file in self.files.items() if not self._is_whole(name, sizes))

    def _is_whole(self, name: str, blobs: Mapping[str, int]) -> bool:
        # where a file system has no links, the file itself stands in the snapshot
        file = self.listing.files[name]
        return file.blob in blobs or _size(self.directory / name) == file.size

    def remove_remains(self) -> None:
        """Remove the parts of files that dead downloads have left, except for what will be gone on with."""
        sizes, now = _sizes(self.root / "blobs"), time.time()
        wanted = {file.blob for file in self.files.values()} if resume.takes_over() else set()
        for name in (name for name in sizes if name.endswith(".incomplete")):
            blob = name.partition(".")[0]
            used = blob in wanted and blob not in sizes
            path = self.root / "blobs" / name
            with contextlib.suppress(OSError):
                still = now - path.stat().st_mtime
                if still > (resume.STILL_SECONDS if blob in sizes else REMAINS_SECONDS) and not used:
                    path.unlink()

    def run(self, tell_every_seconds: float = TELL_EVERY_SECONDS) -> Path:
        """Download what is missing; returns the folder.

        Raises:
            ConfigurationError: the hub refuses for good.
            EngineStartError: the hub cannot be reached for too long, the disk is full, or what came is not
                what was announced.
        """
        repository = self.listing.repository
        attempt = 0
        for _ in range(MAX_ATTEMPTS):
            before = self.bytes_here()
            try:
                with self._told(tell_every_seconds):
                    self._snapshot()
                break
            except hub_errors.failures() as error:
                found = hub_errors.refusal(error)
                attempt = 1 if self.bytes_here() > before else attempt + 1
                wait = self.hub.wait_seconds(found, attempt)
                if wait is None:
                    raise self.hub.failure(found, repository, self.listing.revision) from error
            logger.warning("%s: %s; going on in %.0f s", repository, found.in_words(self.hub.host), wait)
            self.hub.sleep(wait)
        if self._wrong():
            raise self.hub.failure(Refusal("broken"), repository, self.listing.revision)
        self._note_revision()
        self.remove_remains()
        return self.directory

    def _snapshot(self) -> None:
        from huggingface_hub import snapshot_download
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()  # bars make no lines in a log
        with _without_addresses(), resume.parts_are_used():
            snapshot_download(
                self.listing.repository,
                revision=self.listing.commit,
                cache_dir=self.hub.cache,
                allow_patterns=[glob.escape(name) for name in self.names],
                endpoint=self.hub.endpoint,
                token=self.hub.credential,
            )

    def _wrong(self) -> list[str]:
        """The files that are not there, or not of their size."""
        return [name for name, file in self.files.items() if _size(self.directory / name) != file.size]

    def _note_revision(self) -> None:
        """Say in the cache which commit the revision is, once all of it is there, as the hub library does."""
        if self.listing.revision == self.listing.commit:
            return
        path = self.root / "refs" / (self.listing.revision or DEFAULT_REVISION)
        path.parent.mkdir(parents=True, exist_ok=True)
        # not by this process's number, which another container's may have too
        draft = path.with_name(f"{path.name}.{uuid.uuid4().hex}.tmp")
        draft.write_text(self.listing.commit, encoding="utf-8")
        draft.replace(path)

    @contextlib.contextmanager
    def _told(self, every_seconds: float) -> Iterator[None]:
        """A line in the log now and then while the block runs: how much, how fast, how long yet. Bytes are
        counted on the disk, so that what another worker brings counts too."""
        total = sum(file.size for file in self.files.values())
        begun, start = time.monotonic(), self.bytes_here()
        logger.info("downloading %s: %s, %s here", self.listing.repository, in_bytes(total), in_bytes(start))
        done = threading.Event()

        def tell() -> None:
            while not done.wait(every_seconds):
                here, seconds = self.bytes_here(), time.monotonic() - begun
                logger.info(
                    "downloading %s: %s",
                    self.listing.repository,
                    progress(here, total, here - start, seconds),
                )

        thread = threading.Thread(target=tell, name="download-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
        seconds = max(time.monotonic() - begun, 0.001)
        came = max(self.bytes_here() - start, 0)
        logger.info("downloaded %s: %s in %.0f s", self.listing.repository, in_bytes(came), seconds)


def check_room(downloads: Iterable[Download]) -> None:
    """See that the disk has room for what is missing of all `downloads`.

    Raises EngineStartError where it has not.
    """
    wanted: dict[Path, list[Download]] = {}
    for download in downloads:
        download.remove_remains()
        wanted.setdefault(download.hub.cache, []).append(download)
    for folder, some in wanted.items():
        missing = sum(download.bytes_missing() for download in some)
        free = shutil.disk_usage(_existing(folder)).free
        if missing and missing + SPARE_BYTES > free:
            names = ", ".join(download.listing.repository for download in some)
            raise EngineStartError(
                f"{names}: {in_bytes(missing)} are to be downloaded to {folder}, where {in_bytes(free)} are "
                "free: raise the endpoint's container disk, or use a network volume that is large enough",
                permanent=True,
            )


def progress(here: int, total: int, came: int, seconds: float) -> str:
    """How far a download is, in words.

    Args:
        here: bytes of `total` that are here.
        came: bytes that came in the last `seconds`.
    """
    line = f"{in_bytes(here, total)} of {in_bytes(total)}"
    rate = came / seconds if seconds > 0 else 0.0
    if rate <= 0:
        return f"{line}, nothing has come for {seconds:.0f} s"
    return f"{line}, {rate / 1e6:.1f} MB/s, {_duration((total - here) / rate)} left"


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def in_bytes(count: int, scale: int | None = None) -> str:
    """Bytes in words; in the unit of `scale` where there is one."""
    scale = count if scale is None else scale
    return f"{count / _GB:.1f} GB" if scale >= _GB else f"{count / 1e6:.1f} MB"


@contextlib.contextmanager
def _without_addresses() -> Iterator[None]:
    """Keep the hub library's warnings of broken connections out of the log: they show the file store's signed
    addresses, with which anybody could fetch a gated model's file for a while."""
    theirs = logging.getLogger("huggingface_hub.file_download")
    before = theirs.level
    theirs.setLevel(logging.ERROR)
    try:
        yield
    finally:
        theirs.setLevel(before)


def _sizes(folder: Path) -> dict[str, int]:
    sizes: dict[str, int] = {}
    with contextlib.suppress(OSError):
        for entry in os.scandir(folder):
            with contextlib.suppress(OSError):
                sizes[entry.name] = entry.stat().st_size
    return sizes


def _is_part(name: str, blob: str) -> bool:
    return name.startswith(f"{blob}.") and name.endswith("incomplete")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def _existing(path: Path) -> Path:
    """`path`, or the nearest folder above it that exists."""
    return next((place for place in (path, *path.parents) if place.exists()), Path("/"))


def writable(caches: Iterable[Path]) -> Path:
    """The first of `caches` that can be written to. RunPod's model cache may be for reading alone.

    Raises EngineStartError where none can.
    """
    tried = tuple(caches)
    for cache in tried:
        if os.access(_existing(cache), os.W_OK):
            return cache
    raise EngineStartError(f"no place to download to can be written to: {', '.join(map(str, tried))}")
