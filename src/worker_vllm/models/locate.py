"""Where a name leads: a path on this machine, the model in the image, a cache on disk, the hub, in this
order.

What is whole on this machine is used as it is, and the hub is not asked, not even whether a branch has moved
since. Of the hub only lists of files and small files are read here; `download` fetches the rest.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from worker_vllm import values
from worker_vllm.configuration.manifest import Manifest
from worker_vllm.configuration.nearest import nearest
from worker_vllm.errors import ConfigurationError, StartupFailure
from worker_vllm.models import cache, describe, weights
from worker_vllm.models.cache import Snapshot
from worker_vllm.models.download import Download, writable
from worker_vllm.models.facts import ModelFacts, SourceKind, Weights
from worker_vllm.models.hub import Hub, Listing
from worker_vllm.models.need import Need
from worker_vllm.models.wanted import Part

logger = logging.getLogger(__name__)

_GGUF_NAME = re.compile(r"(?P<repository>[^:]+):(?P<quantization>\w+)")


@dataclass(frozen=True)
class Place:
    """Where one part of what is asked for is, or how it gets here.

    Attributes:
        facts: of its folder or repository; a tokenizer's and an adapter's are those of a model, too.
        download: what is to be fetched before it can be used; None where it is here, or is not ours to fetch.
    """

    part: Part
    facts: ModelFacts
    download: Download | None = None

    @property
    def path(self) -> Path | None:
        """The folder or file on this machine, once `download` has run; None for what vLLM reads itself."""
        if self.download is not None:
            return _single_file(self.download.directory, self.facts)
        return self.facts.file or self.facts.directory


class Locator:
    """Looks names up.

    Args:
        environ: where the hub and the caches are.
        root: where the image's own files are, and RunPod's volume.
        baked: the model in the image.
        token: HF_TOKEN, where it is not in `environ`.
        download_dir: DOWNLOAD_DIR, where it is not in `environ`.
        load_format: LOAD_FORMAT.
        needs_tokenizer: whether a model is whole only with its tokenizer.
        make_hub: makes the hub; tests give it no pauses.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        *,
        root: Path = Path("/"),
        baked: Manifest | None = None,
        token: str | None = None,
        download_dir: str | None = None,
        load_format: str = "auto",
        needs_tokenizer: bool = True,
        make_hub: Callable[[Mapping[str, str], Path, str | None], Hub] = Hub,
    ) -> None:
        self._environ = environ
        self._baked = baked
        self._token = token
        if not download_dir and not values.is_unset(environ.get("DOWNLOAD_DIR")):
            download_dir = environ["DOWNLOAD_DIR"]
        self._caches = cache.all_of(environ, root, download_dir)
        # RunPod's own cache is the platform's to fill
        self._downloads = cache.expanded(download_dir, environ) if download_dir else cache.default(environ)
        self._load_format = load_format
        self._need = Need(load_format, needs_tokenizer)
        self._make_hub = make_hub
        self._hub: Hub | None = None

    @property
    def hub(self) -> Hub:
        """The hub, and the cache that it fetches to."""
        if self._hub is None:
            home = cache.default({"HOME": self._environ.get("HOME", "")})
            self._hub = self._make_hub(self._environ, writable((self._downloads, home)), self._token)
        return self._hub

    def find(self, part: Part) -> Place:
        """Where `part` is.

        Raises:
            ConfigurationError: there is no such path, repository or revision, or it may not be had.
            EngineStartError: it is not whole on this machine, and the hub cannot be asked now.
        """
        path = Path(part.name).expanduser()
        if cache.REMOTE_PREFIX.match(part.name):
            return Place(part, ModelFacts(part.name, "remote"))
        if _exists(path):
            return Place(part, self._on_disk(part, path))
        if part.name.startswith(("/", "./", "../", "~")) or part.name.count("/") > 1:
            raise ConfigurationError([f"{_shown(part)}: there is no such path on this machine{_hint(path)}"])
        if (baked := self._baked_path(part)) is not None:
            return Place(part, self._on_disk(part, baked, "baked"))
        repository, quantization = _split(part.name)
        if not cache.REPOSITORY.fullmatch(repository):
            raise ConfigurationError(
                [f"{_shown(part)}: neither a path on this machine nor a repository's name, as in org/name"]
            )
        usable: ModelFacts | None = None
        for snapshot in cache.find(self._caches, repository, part.revision):
            facts = self._in_cache(part, snapshot, quantization)
            if self._need.is_whole(part, facts, snapshot.listed_files()):
                return Place(part, facts)
            usable = usable or (facts if self._need.is_usable(part, facts) else None)
        if "/" in part.name and (hint := _hint(path)):
            logger.warning(
                "%s: there is no such path on this machine%s Looking elsewhere.", _shown(part), hint
            )
        if self._uses_modelscope():
            return Place(part, ModelFacts(part.name, "remote", revision=part.revision))
        return self._on_hub(part, repository, quantization, usable)

    def _on_hub(self, part: Part, repository: str, quantization: str, usable: ModelFacts | None) -> Place:
        hub = self.hub if usable is None else self.hub.without_patience()
        try:
            listing = _narrowed(hub.listing(repository, part.revision), quantization)
            facts = hub.facts(listing, part.name, self._load_format)
        except StartupFailure as failure:
            if usable is None:
                raise
            logger.warning("%s; using what is in %s", failure.in_one_line(), usable.directory)
            return Place(part, usable)
        names = weights.wanted(listing.files, self._need.weights_of(part, facts))
        return Place(part, facts, Download(self.hub, listing, names))

    def _is_baked(self, part: Part) -> bool:
        return self._baked is not None and part.role == "model" and self._baked.is_model(part.name)

    def _baked_path(self, part: Part) -> Path | None:
        """Where the image has it, if it is the same: of a tokenizer, an adapter or a drafter, too."""
        if self._baked is None:
            return None
        path = self._baked.path if self._is_baked(part) else self._baked.others.get(part.name.lower())
        return Path(path) if path and _exists(Path(path)) else None

    def _on_disk(self, part: Part, path: Path, source: SourceKind = "path") -> ModelFacts:
        if self._is_baked(part):  # also where it was named by its path
            source = "baked"
        if path.is_file():
            if path.suffix != ".gguf":
                raise ConfigurationError([f"{_shown(part)}: a file, and no GGUF; give the model's folder"])
            files = {path.name: path.stat().st_size}
            return ModelFacts(
                part.name,
                source,
                file=path,
                files=files,
                weights=Weights("gguf", files),
                revision=part.revision,
            )
        facts = describe.folder(
            path,
            part.name,
            source,
            load_format=self._load_format,
            repository=self._baked.repository if self._baked and self._is_baked(part) else None,
            revision=part.revision,
        )
        if trouble := self._need.lacks(part, facts):
            raise ConfigurationError([f"{_shown(part)}: {trouble}"])
        return facts

    def _in_cache(self, part: Part, snapshot: Snapshot, quantization: str) -> ModelFacts:
        facts = describe.folder(
            snapshot.directory,
            part.name,
            "cache",
            load_format=self._load_format,
            repository=snapshot.repository,
            revision=part.revision,
            commit=snapshot.commit,
        )
        if quantization:
            files = {name: size for name, size in facts.weights.files.items() if _is_of(name, quantization)}
            facts = replace(facts, weights=replace(facts.weights, files=files))
        return replace(facts, file=_only_file(snapshot.directory, facts))

    def _uses_modelscope(self) -> bool:
        return self._environ.get("VLLM_USE_MODELSCOPE", "").strip().lower() in values.TRUE_WORDS


def _shown(part: Part) -> str:
    return f"{part.variable}={values.shown(part.name)}"


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that no file can have
        return False


def _hint(path: Path) -> str:
    """What may be wrong with a path that does not exist."""
    parts = path.parts
    if len(parts) > 2 and parts[0] == "/" and not _exists(Path(*parts[:2])):
        return f"; nothing is mounted at /{parts[1]}"
    try:
        siblings = [other.name for other in path.parent.iterdir()]
    except (OSError, ValueError):
        return ""
    near = nearest(path.name, siblings)
    return f"; did you mean {path.parent / near}?" if near else ""


def _split(name: str) -> tuple[str, str]:
    """A repository and the quantization after its colon, which chooses among GGUF files; "" for none."""
    found = _GGUF_NAME.fullmatch(name)
    return (found["repository"], found["quantization"]) if found else (name, "")


def _is_of(name: str, quantization: str) -> bool:
    return quantization.lower() in name.lower()


def _narrowed(listing: Listing, quantization: str) -> Listing:
    """Without the GGUF files of other quantizations, where one was named."""
    if not quantization:
        return listing
    files = {
        name: file
        for name, file in listing.files.items()
        if not name.endswith(".gguf") or _is_of(name, quantization)
    }
    return replace(listing, files=files)


def _only_file(directory: Path, facts: ModelFacts) -> Path | None:
    """The one GGUF file of a folder, which vLLM's plugin is given instead of the folder."""
    files = list(facts.weights.files)
    return directory / files[0] if facts.weights.format == "gguf" and len(files) == 1 else None


def _single_file(directory: Path, facts: ModelFacts) -> Path:
    return _only_file(directory, facts) or directory
