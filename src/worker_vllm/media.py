"""Fetch what a job's media URL names, from public hosts alone.

A job may name any URL, and this worker stands inside a network that the job's sender does not. So an address
is looked at where the connection is made: the resolver refuses, and what it has let pass is what is
connected to, so that a name cannot say one thing to a check and another to the connection. Redirects are
followed here, each as a URL of its own. No proxy, cookie or password of this machine's is used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from worker_vllm.addresses import Address, Exceptions, is_public
from worker_vllm.errors import MediaError, RequestError

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

_NO_EXCEPTIONS = Exceptions()

MAX_REDIRECTS = 5
FIRST_PAUSE_SECONDS = 0.5
TRY_GROWTH = 4
"""How much longer each further try may take: vLLM's own factor."""

_REDIRECTS = frozenset({301, 302, 303, 307, 308})
# 127.1, 2130706433, 0x7f.1: an address to some readers and a name to others. No name of a host ends so.
_NUMERIC_LABEL = re.compile(r"[0-9]+|0[xX][0-9a-fA-F]*")
_HEADERS = {"User-Agent": "worker-vllm", "Accept-Encoding": "identity"}


@dataclass(frozen=True)
class MediaLimits:
    """What a job's media URLs may cost, and where they may lead.

    Attributes:
        max_bytes: of one URL's content.
        timeout_seconds: for one URL, redirects and further tries included.
        private: hosts that may be reached although they are not public.
        domains: the only hosts that may be reached, redirects included; empty for all.
    """

    max_bytes: int = 100_000_000
    timeout_seconds: float = 30.0
    private: Exceptions = _NO_EXCEPTIONS
    domains: Sequence[str] = ()


async def fetch(
    url: str,
    limits: MediaLimits,
    *,
    tries: int = 1,
    try_seconds: float | None = None,
    max_bytes: int | None = None,
    redirects: bool = True,
) -> bytes:
    """The content at `url`.

    Args:
        tries: how often to ask a host that cannot be reached or answers 429 or 5xx.
        try_seconds: how long the first try may take.
        max_bytes: a narrower limit than that of `limits`.
        redirects: whether they are followed.

    Raises:
        RequestError: the URL leads where no job may go, or to more than the limit.
        MediaError: its host cannot be reached, is too slow, or has no such content.
    """
    import aiohttp

    max_bytes = min(limits.max_bytes, max_bytes or limits.max_bytes)
    pause = FIRST_PAUSE_SECONDS
    try:
        async with asyncio.timeout(limits.timeout_seconds):
            for left in reversed(range(max(1, tries))):
                timeout = aiohttp.ClientTimeout(total=try_seconds)
                try:
                    return await _follow(url, limits, timeout, max_bytes, redirects)
                except (aiohttp.ClientError, TimeoutError, _TryAgain) as error:
                    if not left:
                        raise MediaError(_why(error)) from error
                await asyncio.sleep(pause)
                pause *= 2
                try_seconds = try_seconds and try_seconds * TRY_GROWTH
    except TimeoutError as error:
        raise MediaError(
            f"a media URL's content was not there within {limits.timeout_seconds:g} s (MEDIA_FETCH_TIMEOUT_S)"
        ) from error
    raise AssertionError("unreachable")


class _TryAgain(Exception):
    """The host says that another try may succeed."""


async def _follow(
    url: str, limits: MediaLimits, timeout: aiohttp.ClientTimeout, max_bytes: int, redirects: bool
) -> bytes:
    import aiohttp
    from yarl import URL

    target = _url(url)
    connector = aiohttp.TCPConnector(resolver=_resolver(limits), use_dns_cache=False)
    async with aiohttp.ClientSession(
        connector=connector, timeout=timeout, cookie_jar=aiohttp.DummyCookieJar()
    ) as session:
        for _ in range(MAX_REDIRECTS + 1):
            _check_url(target, limits)
            async with session.get(target, allow_redirects=False, headers=_HEADERS) as response:
                if redirects and response.status in _REDIRECTS and "Location" in response.headers:
                    try:
                        target = target.join(URL(response.headers["Location"]))
                    except ValueError:
                        raise MediaError("a media URL's host sends on to what is no URL") from None
                    continue
                if response.status == 429 or response.status >= 500:
                    raise _TryAgain(f"a media URL's host answered HTTP {response.status}")
                if response.status != 200:
                    raise MediaError(f"a media URL's host answered HTTP {response.status}")
                return await _read(response, max_bytes)
    raise MediaError(f"a media URL was sent on more than {MAX_REDIRECTS} times")


async def _read(response: aiohttp.ClientResponse, max_bytes: int) -> bytes:
    content = bytearray()
    if (response.content_length or 0) <= max_bytes:
        async for piece in response.content.iter_chunked(65_536):
            content += piece
            if len(content) > max_bytes:
                break
        else:
            return bytes(content)
    raise RequestError(f"a media URL's content is larger than {max_bytes / 1e6:g} MB (MEDIA_MAX_MB)")


def _url(text: str) -> URL:
    from yarl import URL

    try:
        return URL(text)
    except ValueError:
        raise RequestError("a media URL is no URL") from None


def _check_url(url: URL, limits: MediaLimits) -> None:
    if url.scheme not in ("http", "https") or not url.host:
        raise RequestError("a media URL must begin with http://, https:// or data:")
    if limits.domains and url.host not in limits.domains:
        raise RequestError("a media URL leads to a host that is not among ALLOWED_MEDIA_DOMAINS")
    try:
        _check_address(url.host, ipaddress.ip_address(url.host), limits)
    except ValueError:  # a name, which the resolver looks at
        if _NUMERIC_LABEL.fullmatch(url.host.rstrip(".").rpartition(".")[2]):
            raise RequestError("a media URL holds an address in an outdated form") from None


def _check_address(host: str, address: Address, limits: MediaLimits) -> None:
    if not is_public(address) and not limits.private.allow(host, address):
        raise RequestError(
            "a media URL leads to a host that is not public; the endpoint's operator allows it with "
            "MEDIA_ALLOWED_PRIVATE"
        )


def _resolver(limits: MediaLimits) -> aiohttp.abc.AbstractResolver:
    import aiohttp

    class CheckedResolver(aiohttp.ThreadedResolver):
        """The system's resolver, for names whose every address may be reached."""

        async def resolve(self, host: str, port: int = 0, family: Any = socket.AF_UNSPEC) -> Any:
            found = await super().resolve(host, port, family)
            for entry in found:
                _check_address(host, ipaddress.ip_address(entry["host"]), limits)
            return found

    return CheckedResolver()


def _why(error: Exception) -> str:
    if isinstance(error, _TryAgain):
        return str(error)
    if isinstance(error, TimeoutError):
        return "a media URL's host was too slow"
    return "a media URL's host cannot be reached"
