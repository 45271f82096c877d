"""What the hub's refusals mean, in one sentence each, with what to do.

A refusal that a restart would meet again is a ConfigurationError (exit 2); the hub's own trouble, or the
network's, is an EngineStartError (exit 3).
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from typing import Any

from worker_vllm.errors import ConfigurationError, EngineStartError, StartupFailure

_ELSEWHERE = "try again later, or bake the model into the image or put it on a network volume"
_SENTENCES = {
    "gated": "{repository} is gated: {hint}",
    "missing": "{hub} has no {repository}{hint}{nearest}",
    "no_revision": "{repository} has no revision {revision}: choose one of its branches, tags or commits",
    "no_file": "{repository} at {revision} lacks a file that its own list names: choose another revision",
    "bad_token": "{hub} refuses HF_TOKEN{status}: it has expired or is mistyped; make a new one that may "
    "read, or leave it out for a public model",
    "forbidden": "{hub} forbids reading {repository}{status}: give HF_TOKEN's token the right to read it",
    "rate_limited": "{hub} has had too many requests from here{status}: {hint}",
    "down": "{hub} does not answer{status}, and {repository} is not whole on this machine: " + _ELSEWHERE,
    "slow": "{hub} answers too slowly{status}, and {repository} is not whole on this machine: " + _ELSEWHERE,
    "broken": "what {hub} sent of {repository} was not what it announced{status}: " + _ELSEWHERE,
    "full": "the disk filled up while {repository} was downloaded: raise the endpoint's container disk, or "
    "use a network volume",
    "unwritable": "what comes of {repository} cannot be written ({detail}): set HF_HUB_CACHE or "
    "DOWNLOAD_DIR to a folder that can be written to",
    "offline": "{repository} is not whole on this machine, and HF_HUB_OFFLINE or TRANSFORMERS_OFFLINE "
    "forbids downloading it: remove that variable, or put the model here",
}
_TERMS = "https://huggingface.co/{repository}"
_HINTS = {
    "gated": (
        f"accept its terms at {_TERMS} and set HF_TOKEN to a token of that account",
        f"HF_TOKEN's account has no access to it; accept its terms at {_TERMS}, or wait to be let in",
    ),
    "missing": (
        " (or it is private: then set HF_TOKEN)",
        " (or it is private, and HF_TOKEN's account may not see it)",
    ),
    "rate_limited": (
        "try again in some minutes, or set HF_TOKEN, as known accounts may ask more often",
        "try again in some minutes, or bake the model into the image",
    ),
}
"""By kind: what to say where no HF_TOKEN was sent, and where one was."""
_HAPPENED = {
    "rate_limited": "has had too many requests from here",
    "down": "does not answer",
    "slow": "answers too slowly",
    "broken": "sent something else than it announced",
}
_MAY_PASS = frozenset(_HAPPENED)
_OF_THE_MACHINE = frozenset({"full", "unwritable"})


@dataclass(frozen=True)
class Refusal:
    """Why the hub, or the way to it, did not give what was asked for.

    Attributes:
        kind: gated, missing, no_revision, no_file, bad_token, forbidden, rate_limited, down, slow, broken,
            full, unwritable or offline.
        status: the HTTP status, where there was one.
        wait_seconds: how long the hub asked to be left alone; None where it did not say.
        detail: what the operating system said, where it was that.
    """

    kind: str
    status: int | None = None
    wait_seconds: float | None = None
    detail: str = ""

    @property
    def may_pass(self) -> bool:
        """Whether asking again can help."""
        return self.kind in _MAY_PASS

    def in_words(self, hub: str) -> str:
        """What happened, without advice."""
        return f"{hub} {_HAPPENED.get(self.kind, 'refused')}{_shown(self.status)}"


def failure(
    found: Refusal,
    repository: str,
    revision: str | None,
    *,
    hub: str,
    token: bool,
    nearest: str | None = None,
) -> StartupFailure:
    """The start-up failure that `found` amounts to.

    Args:
        hub: the hub's host name.
        token: whether HF_TOKEN was sent.
        nearest: the repository that was probably meant.
    """
    words = {
        "repository": repository,
        "revision": revision or "main",
        "hub": hub,
        "status": _shown(found.status),
        "detail": found.detail,
        "nearest": f"; did you mean {nearest}?" if nearest else "",
    }
    hint = _HINTS.get(found.kind, ("", ""))[token].format(**words)
    sentence = _SENTENCES[found.kind].format(**words, hint=hint)
    if found.may_pass or found.kind in _OF_THE_MACHINE:
        return EngineStartError(sentence, permanent=not found.may_pass)
    return ConfigurationError([sentence])


def _shown(status: int | None) -> str:
    return f" (HTTP {status})" if status else ""


def refusal(error: BaseException) -> Refusal:
    """What an exception of the hub library means."""
    from huggingface_hub import errors

    links = _chain(error)
    for link in links:
        if isinstance(link, errors.GatedRepoError):
            return Refusal("gated", _status(link))
        if isinstance(link, errors.RevisionNotFoundError):
            return Refusal("no_revision", 404)
        if isinstance(link, errors.RepositoryNotFoundError):
            return Refusal("missing", _status(link))
        if isinstance(link, errors.EntryNotFoundError) and _status(link) == 404:
            return Refusal("no_file", 404)
        if isinstance(link, errors.OfflineModeIsEnabled):
            return Refusal("offline")
        if isinstance(link, errors.HfHubHTTPError) and (status := _status(link)) is not None:
            return _by_status(link, status)
        if isinstance(link, OSError) and link.errno in (errno.ENOSPC, errno.EDQUOT):
            return Refusal("full")
        if isinstance(link, OSError) and link.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            return Refusal("unwritable", detail=f"{link.strerror}: {link.filename}")
    if any(map(_is_timeout, links)):
        return Refusal("slow")
    return Refusal("down" if any(isinstance(link, _transport_errors()) for link in links) else "broken")


def failures() -> tuple[type[BaseException], ...]:
    """What the hub library raises for anything that `refusal` knows."""
    from huggingface_hub import errors

    return (errors.EntryNotFoundError, OSError, *_transport_errors())


def _transport_errors() -> tuple[type[BaseException], ...]:
    """The base of all errors of the HTTP client that the hub library uses: requests, httpx or httpx2, by its
    version."""
    from huggingface_hub import errors

    return tuple(base for base in errors.HfHubHTTPError.__bases__ if base is not OSError)


def _chain(error: BaseException) -> list[BaseException]:
    """An error and what it was raised from, the first cause last: the hub library wraps."""
    links: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in links:
        links.append(link)
        link = link.__cause__ or link.__context__
    return links


def _is_timeout(error: BaseException) -> bool:
    # the HTTP clients have no common class for it
    names = {cls.__name__ for cls in type(error).__mro__}
    return isinstance(error, TimeoutError) or not names.isdisjoint(("TimeoutException", "Timeout"))


def _status(error: Any) -> int | None:
    status = getattr(getattr(error, "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def _by_status(error: Any, status: int) -> Refusal:
    if status == 429:
        return Refusal("rate_limited", status, _retry_after(error))
    kinds = {401: "bad_token", 403: "forbidden", 408: "slow", 504: "slow"}
    return Refusal(kinds.get(status, "down" if status >= 500 else "broken"), status)


def _retry_after(error: Any) -> float | None:
    try:
        return max(0.0, float(error.response.headers["Retry-After"]))
    except (KeyError, ValueError, TypeError, AttributeError):
        return None
