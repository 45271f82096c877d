"""vLLM's way to media, led through `media.fetch`.

Every route and every kind of media ends in one class of vLLM's, MediaConnector, and that in one connection
object (0.26 to 0.33; the contract tests hold it). Both are changed in place, since vLLM binds them when it is
imported.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from worker_vllm import media
from worker_vllm.errors import MediaError, RequestError
from worker_vllm.media import MediaLimits
from worker_vllm.vllm_compat import load

_PARAMETER = "url"


def install(limits: MediaLimits) -> None:
    """Let media be fetched within `limits` from here on, and whatever fails there be the caller's error.
    Repeatable: the last call wins."""
    connection = load("global_http_connection")

    async def async_get_bytes(url: str, **options: Any) -> bytes:
        try:
            return await media.fetch(url, limits, **_options(options))
        except RequestError as error:
            raise _as_vllms(error) from error

    def get_bytes(url: str, **options: Any) -> bytes:
        # A thread of its own, since the caller's may run a loop already.
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(asyncio.run, async_get_bytes(url, **options)).result()

    connection.async_get_bytes = async_get_bytes
    connection.get_bytes = get_bytes
    connector = load("MediaConnector")
    connector.load_from_url_async = _with_callers_errors(connector.load_from_url_async)


def _options(given: dict[str, Any]) -> dict[str, Any]:
    """`media.fetch`'s options for those of vLLM's call, and its setting for further tries."""
    return {
        "try_seconds": given.get("timeout"),
        "max_bytes": given.get("max_bytes"),
        "redirects": given.get("allow_redirects", True),
        "tries": getattr(load("envs"), "VLLM_MEDIA_FETCH_MAX_RETRIES", 1),
    }


def _with_callers_errors(load_url: Callable[..., Any]) -> Callable[..., Any]:
    """`load_url`, whose failures are the request's: libraries that decode media raise whatever they like, and
    vLLM answers 500 or 501 to some of it."""
    if load_url.__module__ == __name__:
        return load_url

    async def load_or_refuse(self: Any, url: str, *rest: Any, **options: Any) -> Any:
        try:
            return await load_url(self, url, *rest, **options)
        except Exception as error:
            if isinstance(error, (ValueError, *_vllms_own())):
                raise
            what = " ".join(str(error).split()) or type(error).__name__
            raise _as_vllms(MediaError(f"the media cannot be read: {what}")) from error

    return load_or_refuse


def _vllms_own() -> tuple[type[BaseException], ...]:
    names = ("VLLMValidationError", "VLLMClientError")
    return tuple(kind for kind in map(load, names) if kind is not None)


def _as_vllms(error: RequestError) -> Exception:
    """vLLM's exception for `error`: what its own app turns into an answer with the same status."""
    unprocessable = load("VLLMUnprocessableEntityError")
    kind = unprocessable if unprocessable and isinstance(error, MediaError) else load("VLLMValidationError")
    refusal: Exception = kind(error.message, parameter=_PARAMETER)
    return refusal
