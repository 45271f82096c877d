"""Bodies on the wire: JSON in and out, the platform's error family, and reading with a limit."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from aiohttp import web

_BODY = web.RequestKey("body", bytes)


class WireError(Exception):
    """An answer other than success, to be sent in the platform's error family.

    Attributes:
        status: the HTTP status.
        detail: one sentence for the caller.
    """

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail


def json_reply(body: Any, status: int = 200) -> web.Response:
    """`body` as the platform writes it: keys in alphabetical order (seen in every capture)."""
    return web.Response(
        body=encode(body), status=status, headers={"Content-Type": "application/json; charset=utf-8"}
    )


def error_reply(status: int, detail: str) -> web.Response:
    """The error family `{"detail", "status", "title"}`; 524 is the edge's and has no standard phrase."""
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "A Timeout Occurred" if status == 524 else "Error"
    return json_reply({"status": status, "title": title, "detail": detail}, status)


def encode(body: Any) -> bytes:
    """`body` as JSON bytes with sorted keys; what UTF-8 cannot hold becomes U+FFFD, as Go's encoder does
    it.
    """
    text = json.dumps(body, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return to_bytes(text)


def to_bytes(text: str) -> bytes:
    """`text` as UTF-8, each lone surrogate as U+FFFD."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def decode(body: bytes) -> Any:
    """The JSON value in `body`.

    Raises:
        WireError: 400, when it is not JSON. NaN and infinities are not: no JSON parser but Python's takes
        them.
    """
    try:
        return _DECODER.decode(body.decode())
    except (ValueError, RecursionError):
        raise WireError(400, "the body is not valid JSON") from None


async def read_limited(request: web.Request, limit_bytes: int, over_status: int) -> bytes:
    """The whole body, unless it is longer than `limit_bytes`. It can be asked for more than once.

    Raises:
        WireError: `over_status`, without reading the rest.
    """
    if _BODY in request:
        return request[_BODY]
    if (request.content_length or 0) > limit_bytes:
        raise WireError(over_status, f"the body is larger than {limit_bytes} bytes")
    body = bytearray()
    async for part in request.content.iter_any():
        body += part
        if len(body) > limit_bytes:
            raise WireError(over_status, f"the body is larger than {limit_bytes} bytes")
    request[_BODY] = bytes(body)
    return request[_BODY]


def split_path_query(segment: str, query: str) -> tuple[str, dict[str, str]]:
    """A path's last segment and the query, where the query may hang on the segment.

    The SDK appends `&job_in_progress=0` to whatever URL it was given; the Hub's runner gives one without a
    `?`, so that the parameters arrive as part of the path.
    """
    name, _, rest = segment.partition("&")
    return name, dict(parse_qsl("&".join(filter(None, (rest, query))), keep_blank_values=True))


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
