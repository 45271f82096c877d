"""vLLM's own way to media ends where the worker's guard stands. Needs vLLM and no engine."""

from __future__ import annotations

import asyncio
import base64
import inspect
import io
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from aiohttp import web

from worker_vllm import vllm_errors, vllm_media
from worker_vllm.addresses import Exceptions
from worker_vllm.errors import RequestError
from worker_vllm.media import MediaLimits
from worker_vllm.vllm_compat import load

HERE = MediaLimits(private=Exceptions.parse("127.0.0.1"))
KINDS = ("fetch_image_async", "fetch_audio_async", "fetch_video_async")
SYNC_KINDS = ("fetch_image", "fetch_audio", "fetch_video")


def picture() -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(buffer, "PNG")
    return buffer.getvalue()


@pytest_asyncio.fixture(loop_scope="session")
async def host() -> AsyncIterator[tuple[str, list[str]]]:
    """A web server on this machine: its address, and the paths that it was asked for."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.path)
        return web.Response(body=b"x" * 1000 if request.path == "/noise" else picture())

    listener = socket.create_server(("127.0.0.1", 0))
    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.SockSite(runner, listener).start()
    yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    await runner.cleanup()


def connector(**options: Any) -> Any:
    return load("MediaConnector")(**options)


async def refusal(awaitable: Any) -> RequestError:
    with pytest.raises(RequestError) as caught, vllm_errors.translated():
        await awaitable
    return caught.value


def test_media_connectors_share_the_guarded_connection() -> None:
    default = inspect.signature(load("MediaConnector")).parameters["connection"].default
    assert default is load("global_http_connection")
    assert isinstance(default, load("HTTPConnection"))


@pytest.mark.parametrize("kind", KINDS)
async def test_no_kind_of_media_reaches_this_machine(kind: str, host: tuple[str, list[str]]) -> None:
    vllm_media.install(MediaLimits())
    error = await refusal(getattr(connector(), kind)(f"{host[0]}/a"))
    assert (error.code, host[1]) == (400, [])
    assert "not public" in error.message


@pytest.mark.parametrize("kind", SYNC_KINDS)
async def test_nor_on_the_synchronous_way(kind: str, host: tuple[str, list[str]]) -> None:
    vllm_media.install(MediaLimits())
    error = await refusal(asyncio.to_thread(getattr(connector(), kind), f"{host[0]}/a"))
    assert (error.code, host[1]) == (400, [])


async def test_what_is_allowed_is_fetched(host: tuple[str, list[str]]) -> None:
    vllm_media.install(HERE)
    found = await connector().fetch_image_async(f"{host[0]}/a")
    assert getattr(found, "media", found).size == (3, 2)
    found = await asyncio.to_thread(connector().fetch_image, f"{host[0]}/a")
    assert getattr(found, "media", found).size == (3, 2)


async def test_data_urls_need_no_host() -> None:
    vllm_media.install(MediaLimits())
    url = f"data:image/png;base64,{base64.b64encode(picture()).decode()}"
    found = await connector().fetch_image_async(url)
    assert getattr(found, "media", found).size == (3, 2)


def bomb() -> str:
    """An image file of a few bytes that says it is enormous."""
    import struct
    import zlib

    head = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    chunk = b"IHDR" + head
    png = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + chunk + struct.pack(">I", zlib.crc32(chunk))
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "url", ["data:image/png;base64,AAAA", "data:image/png;base64,!", "data:,hello", "data:", "file:///etc/passwd",
            "file://localhost/etc/passwd", "ftp://example.org/a", "nonsense", "", "http://[::1", bomb()],
    ids=lambda url: url[:24],
)  # fmt: skip
async def test_media_that_cannot_be_read_are_the_callers_error(kind: str, url: str) -> None:
    vllm_media.install(MediaLimits())
    error = await refusal(getattr(connector(), kind)(url))
    assert 400 <= error.code < 500


async def test_noise_from_a_host_is_the_callers_error(host: tuple[str, list[str]]) -> None:
    vllm_media.install(HERE)
    for kind in KINDS:
        error = await refusal(getattr(connector(), kind)(f"{host[0]}/noise"))
        assert 400 <= error.code < 500


async def test_local_files_are_those_of_the_operators_folder(tmp_path: Any) -> None:
    vllm_media.install(MediaLimits())
    (tmp_path / "open").mkdir()
    (tmp_path / "open" / "a.png").write_bytes(picture())
    (tmp_path / "secret.png").write_bytes(picture())
    (tmp_path / "open" / "link.png").symlink_to(tmp_path / "secret.png")
    opened = connector(allowed_local_media_path=str(tmp_path / "open"))
    found = await opened.fetch_image_async(f"file://{tmp_path}/open/a.png")
    assert getattr(found, "media", found).size == (3, 2)
    for path in ("secret.png", "open/../secret.png", "open/%2e%2e/secret.png", "open/link.png"):
        error = await refusal(opened.fetch_image_async(f"file://{tmp_path}/{path}"))
        assert 400 <= error.code < 500


async def test_a_fetch_leaves_no_url_in_the_log(
    host: tuple[str, list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    """A media URL is part of the prompt, and may hold a key."""
    vllm_media.install(HERE)
    await refusal(connector().fetch_image_async("http://127.0.0.1:1/a?key=SECRET"))
    await refusal(connector().fetch_image_async("http://10.0.0.1/a?key=SECRET"))
    assert "SECRET" not in caplog.text
