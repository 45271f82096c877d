"""The hub: what a repository holds, its small files, and its name's neighbours. No weight is fetched here.

The hub library is imported with the first call, since that takes half a second and reads the environment once
and for all; a model that is on this machine never comes here.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from worker_vllm import values
from worker_vllm.configuration.nearest import nearest
from worker_vllm.errors import StartupFailure
from worker_vllm.models import describe, hub_errors
from worker_vllm.models.cache import DEFAULT_REVISION
from worker_vllm.models.facts import ModelFacts
from worker_vllm.models.hub_errors import Refusal

logger = logging.getLogger(__name__)

T = TypeVar("T")

TIMEOUT_SECONDS = 10.0
"""How long the hub may take for one answer about a repository."""

ATTEMPTS = 5
FIRST_WAIT_SECONDS = 1.0
MAX_WAIT_SECONDS = 60.0

_SEARCH_LIMIT = 20


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository.

    Attributes:
        size: bytes.
        blob: what its blob in a cache is called: the SHA-256 of a large file, git's hash of a small one.
        sha256: of a large file's content; None for a small one.
    """

    size: int
    blob: str
    sha256: str | None = None


@dataclass(frozen=True)
class Listing:
    """What a repository holds at one commit."""

    repository: str
    revision: str | None
    commit: str
    files: Mapping[str, RemoteFile] = field(repr=False)

    @property
    def sizes(self) -> dict[str, int]:
        """Every file, to bytes."""
        return {name: file.size for name, file in self.files.items()}


class Hub:
    """The hub that `environ` names, asked as its HF_TOKEN.

    Args:
        token: in the place of HF_TOKEN.
        cache: where fetched files go.
        sleep: waits between attempts, in seconds.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        cache: Path,
        token: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.cache = cache
        endpoint = environ.get("HF_ENDPOINT", "")
        self.endpoint = (
            "https://huggingface.co" if values.is_unset(endpoint) else endpoint.strip().rstrip("/")
        )
        given = token or environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN") or ""
        self.token = None if values.is_unset(given) else given.strip()
        self.offline = any(
            str(environ.get(name, "")).strip().lower() in values.TRUE_WORDS
            for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        )
        self.sleep = sleep
        self._attempts = ATTEMPTS

    @property
    def host(self) -> str:
        """The hub's name for messages; an address may hold a password."""
        return urlsplit(self.endpoint).hostname or "the hub"

    def without_patience(self) -> Hub:
        """The same hub, asked once: for a model that is here already and might only be whole."""
        other = copy.copy(self)
        other._attempts = 1
        return other

    def listing(self, repository: str, revision: str | None) -> Listing:
        """What `repository` holds at `revision`.

        Raises:
            ConfigurationError: there is no such repository or revision, or HF_TOKEN may not see it.
            EngineStartError: the hub cannot be asked now.
        """
        info = self.attempt(repository, revision, lambda: self._info(repository, revision))
        files = {
            sibling.rfilename: RemoteFile(
                size=sibling.size or 0,
                blob=sibling.lfs.sha256 if sibling.lfs else sibling.blob_id or "",
                sha256=sibling.lfs.sha256 if sibling.lfs else None,
            )
            for sibling in info.siblings or ()
        }
        return Listing(repository, revision, info.sha, files)

    def _info(self, repository: str, revision: str | None) -> Any:
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint, token=self.credential)
        return api.model_info(
            repository, revision=revision or DEFAULT_REVISION, files_metadata=True, timeout=TIMEOUT_SECONDS
        )

    def facts(self, listing: Listing, name: str, load_format: str = "auto") -> ModelFacts:
        """The facts of a repository from its list of files and its small files, which go to the cache.

        Raises as `listing`.
        """

        def read_text(file: str) -> str | None:
            return describe.read_small(self.file(listing, file))

        return describe.facts(
            name,
            "hub",
            listing.sizes,
            read_text,
            load_format=load_format,
            repository=listing.repository,
            revision=listing.revision,
            commit=listing.commit,
        )

    def file(self, listing: Listing, name: str) -> Path:
        """One file of the repository, in the cache. Raises as `listing`."""

        def fetch() -> Path:
            from huggingface_hub import hf_hub_download

            path = hf_hub_download(
                listing.repository,
                name,
                revision=listing.commit,
                cache_dir=self.cache,
                endpoint=self.endpoint,
                token=self.credential,
                etag_timeout=TIMEOUT_SECONDS,
            )
            return Path(path)

        return self.attempt(listing.repository, listing.revision, fetch)

    def attempt(self, repository: str, revision: str | None, call: Callable[[], T]) -> T:
        """What `call` of the hub library returns, tried again with growing pauses while that may help.

        Raises as `listing`.
        """
        if self.offline:
            raise self.failure(Refusal("offline"), repository, revision)
        for number in range(1, self._attempts + 1):
            try:
                return call()
            except hub_errors.failures() as error:
                found = hub_errors.refusal(error)
                wait = self.wait_seconds(found, number)
                if wait is None:
                    raise self.failure(found, repository, revision) from error
            logger.warning("%s: %s; trying again in %.0f s", repository, found.in_words(self.host), wait)
            self.sleep(wait)
        raise AssertionError("the last attempt returns or raises")

    def wait_seconds(self, found: Refusal, number: int) -> float | None:
        """How long to wait before the attempt after the `number`th; None where there should be none."""
        if not found.may_pass or number >= self._attempts:
            return None
        wait = FIRST_WAIT_SECONDS * 2 ** (number - 1) if found.wait_seconds is None else found.wait_seconds
        return wait if wait <= MAX_WAIT_SECONDS else None

    def failure(self, found: Refusal, repository: str, revision: str | None) -> StartupFailure:
        """The start-up failure that `found` amounts to, with the nearest right name where one is missing."""
        meant = self._nearest(repository) if found.kind == "missing" else None
        return hub_errors.failure(
            found, repository, revision, hub=self.host, token=self.token is not None, nearest=meant
        )

    def _nearest(self, repository: str) -> str | None:
        """The hub's repository whose name is most like `repository`; None where it finds none, or does not
        say: this is only a hint."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self.endpoint, token=self.credential)
        owner, _, name = repository.rpartition("/")
        try:
            found = [model.id for model in api.list_models(search=name, limit=_SEARCH_LIMIT)]
            if owner:
                found += [model.id for model in api.list_models(author=owner, limit=_SEARCH_LIMIT)]
        except hub_errors.failures():
            return None
        return nearest(repository, found, cutoff=0.7)

    @property
    def credential(self) -> str | bool:
        """What the hub library is to send: the token, or none. Never one from a file in somebody's home."""
        return self.token or False
