"""Media URLs lead to public hosts alone, redirects and changing names included, and cost what they may."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from worker_vllm.addresses import Exceptions
from worker_vllm.errors import MediaError, RequestError
from worker_vllm.media import MediaLimits, fetch

HERE = MediaLimits(private=Exceptions.parse("127.0.0.1"))
"""This machine's address is allowed, its names and other addresses are not."""


class Host:
    """A web server on this machine.

    Attributes:
        seen: paths that it was asked for.
        headers: of the last request.
    """

    def __init__(self, port: int) -> None:
        self.port = port
        self.seen: list[str] = []
        self.headers: Any = {}
        self.failures = 0

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(request.path)
        self.headers = request.headers
        if request.path == "/to":
            return web.Response(status=302, headers={"Location": request.query["url"]})
        if request.path == "/again":
            return web.Response(status=302, headers={"Location": "/again"})
        if request.path == "/slow":
            await asyncio.sleep(30)
        if request.path == "/flaky" and len(self.seen) <= self.failures:
            return web.Response(status=503)
        if request.path == "/endless":
            response = web.StreamResponse()
            await response.prepare(request)
            while True:
                await response.write(b"x" * 65_536)
        if request.path == "/missing":
            return web.Response(status=404)
        return web.Response(body=b"picture", headers={"Set-Cookie": "a=b"})


@pytest_asyncio.fixture
async def host() -> AsyncIterator[Host]:
    listener = socket.create_server(("127.0.0.1", 0))
    found = Host(listener.getsockname()[1])
    app = web.Application()
    app.router.add_get("/{path:.*}", found.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.01)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    yield found
    await runner.cleanup()


def resolve_to(monkeypatch: pytest.MonkeyPatch, *answers: str) -> list[str]:
    """Let every name resolve to these addresses in turn; returns the names that were asked for."""
    asked: list[str] = []

    async def getaddrinfo(self: Any, name: str, port: int, **_: Any) -> Any:
        asked.append(name)
        address = answers[min(len(asked), len(answers)) - 1]
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        place = (address, port, 0, 0) if ":" in address else (address, port)
        return [(family, socket.SOCK_STREAM, 6, "", place)]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", getaddrinfo)
    return asked


async def test_what_a_public_host_has_is_fetched(host: Host) -> None:
    assert await fetch(host.url("/a"), HERE) == b"picture"


LOCAL_FORMS = ["127.0.0.1", "localhost", "127.1", "2130706433", "0x7f.1", "0x7f000001", "0177.0.0.1", "0",
               "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "127.0.0.1.", "user:pass@127.0.0.1",
               "１２７.0.0.1"]  # fmt: skip


@pytest.mark.parametrize("form", LOCAL_FORMS)
async def test_this_machine_is_out_of_reach_in_every_spelling(host: Host, form: str) -> None:
    with pytest.raises(RequestError) as caught:
        await fetch(host.url("/a", form), MediaLimits())
    assert host.seen == []
    assert caught.value.code == 400


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://example.org/a", "gopher://127.0.0.1/", "http:///a",
                                 "//example.org/a", "a.png", "", "http://[::1", "javascript:1"])  # fmt: skip
async def test_only_http_is_fetched(url: str) -> None:
    with pytest.raises(RequestError, match="media URL"):
        await fetch(url, MediaLimits())


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "10.0.0.1", "100.64.0.1", "224.0.0.1",
                                     "::1", "::ffff:169.254.169.254", "fd00:ec2::254"])  # fmt: skip
async def test_a_name_is_refused_for_its_address(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    resolve_to(monkeypatch, address)
    with pytest.raises(RequestError, match="not public"):
        await fetch("http://pictures.example/a", MediaLimits())


async def test_a_name_that_changes_behind_the_check_is_not_asked_again(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: the address that was looked at is the one that is connected to."""
    limits = MediaLimits(private=Exceptions.parse("127.0.0.1"))
    asked = resolve_to(monkeypatch, "127.0.0.1", "10.0.0.1")
    assert await fetch(host.url("/a", "pictures.example"), limits) == b"picture"
    assert asked == ["pictures.example"]


@pytest.mark.parametrize("target", ["http://169.254.169.254/latest/meta-data", "http://[::1]/", "file:///etc/passwd",
                                    "http://10.0.0.1/", "//169.254.169.254/"])  # fmt: skip
async def test_a_redirect_is_looked_at_like_the_first_url(host: Host, target: str) -> None:
    with pytest.raises(RequestError, match=r"not public|must begin"):
        await fetch(host.url(f"/to?url={target}"), HERE)


async def test_a_redirect_to_a_name_is_refused_for_its_address(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolve_to(monkeypatch, "10.0.0.1")
    with pytest.raises(RequestError, match="not public"):
        await fetch(host.url("/to?url=http://inside.example/"), HERE)


async def test_redirects_are_followed_within_reason(host: Host) -> None:
    assert await fetch(host.url("/to?url=/a"), HERE) == b"picture"
    with pytest.raises(MediaError, match="302"):
        await fetch(host.url("/to?url=/a"), HERE, redirects=False)
    with pytest.raises(MediaError, match="more than 5 times"):
        await fetch(host.url("/again"), HERE)


async def test_a_redirect_does_not_leave_the_allowed_domains(host: Host) -> None:
    limits = replace(HERE, domains=("127.0.0.1",))
    assert await fetch(host.url("/a"), limits) == b"picture"
    with pytest.raises(RequestError, match="ALLOWED_MEDIA_DOMAINS"):
        await fetch(host.url("/to?url=http://example.org/"), limits)


@pytest.mark.parametrize("path", ["/a", "/endless"])
async def test_content_beyond_the_limit_is_refused(host: Host, path: str) -> None:
    with pytest.raises(RequestError, match="MEDIA_MAX_MB"):
        await fetch(host.url(path), replace(HERE, max_bytes=5))
    with pytest.raises(RequestError, match="MEDIA_MAX_MB"):
        await fetch(host.url(path), HERE, max_bytes=5)


async def test_a_slow_host_is_given_up(host: Host) -> None:
    with pytest.raises(MediaError, match="MEDIA_FETCH_TIMEOUT_S"):
        await fetch(host.url("/slow"), replace(HERE, timeout_seconds=0.05))
    with pytest.raises(MediaError, match="too slow"):
        await fetch(host.url("/slow"), HERE, try_seconds=0.05)


async def test_a_host_that_is_busy_is_asked_again(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_vllm.media.FIRST_PAUSE_SECONDS", 0.001)
    host.failures = 2
    assert await fetch(host.url("/flaky"), HERE, tries=3) == b"picture"
    host.seen.clear()
    with pytest.raises(MediaError, match="503"):
        await fetch(host.url("/flaky"), HERE, tries=2)


async def test_what_is_missing_is_the_callers_error(host: Host) -> None:
    with pytest.raises(MediaError, match="404") as caught:
        await fetch(host.url("/missing"), HERE, tries=3)
    assert (caught.value.code, host.seen) == (422, ["/missing"])
    with pytest.raises(MediaError, match="cannot be reached"):
        await fetch("http://127.0.0.1:1/", HERE)


async def test_nothing_of_this_machines_is_sent_along(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """No proxy, whose network is another; no password of a .netrc; no cookie of another job's."""
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    await fetch(host.url("/a"), HERE)
    await fetch(host.url("/a"), HERE)
    assert not {"Cookie", "Authorization"} & set(host.headers)
