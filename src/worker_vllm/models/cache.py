"""The layout of a hub cache on disk, read without the hub library, whose import takes half a second.

    models--org--name/refs/main             a commit
    models--org--name/snapshots/COMMIT/     files, as links to ../../blobs/…
    models--org--name/trees/COMMIT.json     the repository's list of files, where the hub library kept it

RunPod's model cache has the same layout and lower-case names (user-problems.md 13).
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from worker_vllm import values

RUNPOD_CACHE = Path("runpod-volume/huggingface-cache/hub")
"""Where RunPod puts the model that the endpoint names, below the root."""

REPOSITORY = re.compile(
    r"(?=.{1,96}$)(?!.*(?:--|\.\.|\.git$))(?:\w(?:[\w.-]*\w)?/)?\w(?:[\w.-]*\w)?", re.ASCII
)
"""A repository's id: name or owner/name, by the hub library's own rules."""

REMOTE_PREFIX = re.compile(r"[a-zA-Z][\w+.-]*://")
"""What begins like an address: an object store that vLLM reads itself (s3://, gs://, az://, …)."""

DEFAULT_REVISION = "main"

_SHORT_COMMIT = re.compile(r"[0-9a-f]{7,39}")


@dataclass(frozen=True)
class Snapshot:
    """One commit of a repository in a cache.

    Attributes:
        repository: the id as it was asked for, in its own case.
        root: the repository's folder in the cache.
    """

    repository: str
    root: Path
    commit: str

    @property
    def directory(self) -> Path:
        """Where the files are."""
        return self.root / "snapshots" / self.commit

    def listed_files(self) -> Mapping[str, int] | None:
        """Every file of the commit, to bytes, as the hub listed it; None where no listing was kept."""
        try:
            content = json.loads((self.root / "trees" / f"{self.commit}.json").read_text(encoding="utf-8"))
            return {name: int(entry["size"]) for name, entry in content["files"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def default(environ: Mapping[str, str]) -> Path:
    """The cache that the hub library uses under `environ`."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if not values.is_unset(environ.get(name)):
            return expanded(environ[name], environ)
    if not values.is_unset(environ.get("HF_HOME")):
        return expanded(environ["HF_HOME"], environ) / "hub"
    home = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return expanded(home, environ) / "huggingface" / "hub"


def expanded(text: str, environ: Mapping[str, str]) -> Path:
    """The path that `text` means, with the home of `environ` for a leading ~."""
    home = environ.get("HOME") or str(Path.home())
    text = text.strip()
    return Path(home + text[1:] if text == "~" or text.startswith("~/") else text)


def all_of(environ: Mapping[str, str], root: Path, download_dir: str | None = None) -> tuple[Path, ...]:
    """Every cache to look in, first to last: RunPod's, that of BASE_PATH, the hub library's, DOWNLOAD_DIR."""
    places = [root / RUNPOD_CACHE]
    if not values.is_unset(environ.get("BASE_PATH")):
        places.append(expanded(environ["BASE_PATH"], environ) / "huggingface-cache" / "hub")
    places.append(default(environ))
    if download_dir:
        places.append(expanded(download_dir, environ))
    return tuple(dict.fromkeys(places))


def find(caches: tuple[Path, ...], repository: str, revision: str | None) -> Iterator[Snapshot]:
    """The snapshots of `repository` at `revision`, in the order of `caches`. The hub is not asked whether a
    branch has moved since."""
    if not REPOSITORY.fullmatch(repository):
        return
    for cache in caches:
        for folder in _folders(cache, repository):
            commit = _commit(folder, revision)
            if commit is not None:
                yield Snapshot(repository, folder, commit)


def _folders(cache: Path, repository: str) -> Iterator[Path]:
    """The repository's folder, first in its own case and then in any other."""
    name = "--".join(("models", *repository.split("/")))
    if (cache / name).is_dir():
        yield cache / name
    try:
        alike = sorted(path.name for path in cache.iterdir() if path.name.lower() == name.lower())
    except OSError:
        return
    yield from (cache / other for other in alike if other != name)


def _commit(folder: Path, revision: str | None) -> str | None:
    revision = None if revision == DEFAULT_REVISION else revision
    try:
        snapshots = {entry.name for entry in os.scandir(folder / "snapshots") if entry.is_dir()}
    except OSError:
        return None
    if revision in snapshots:
        return revision
    try:
        named = (folder / "refs" / (revision or DEFAULT_REVISION)).read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        named = None
    if named in snapshots:
        return named
    if revision is None and named is None:
        # a cache that was filled by copying has no refs; the latest is the best there is
        return max(snapshots, key=lambda name: (_changed(folder / "snapshots" / name), name), default=None)
    short = [name for name in snapshots if name.startswith(revision or "-")]
    return short[0] if revision and _SHORT_COMMIT.fullmatch(revision) and len(short) == 1 else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
