"""Routes of vLLM's app as jobs name them: one normal form, to be compared with a list of allowed ones."""

from __future__ import annotations

import re
import unicodedata
from typing import Any
from urllib.parse import unquote

from worker_vllm.errors import RequestError
from worker_vllm.job_fields import MAX_ROUTE_CHARACTERS, METHODS
from worker_vllm.job_values import describe, read_text

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
# Controls, invisible format characters, surrogates, and the two line separators that are no controls.
_REFUSED_CATEGORIES = ("Cc", "Cf", "Cs", "Zl", "Zp")
_GATEWAY_PREFIX = "/openai"


def normalise_route(value: Any, param: str) -> tuple[str, str]:
    """The path and the query of a route as a job gives it.

    The path is percent-decoded, begins with one slash, ends with none, and holds no empty segment and no
    `/openai` before `/v1`. Raises RequestError for anything that is not a plain path: a scheme or host, "."
    and "..", backslashes, fragments, control characters.
    """
    text = read_text(value, param, MAX_ROUTE_CHARACTERS).strip(" ")
    if any(unicodedata.category(character) in _REFUSED_CATEGORIES for character in text):
        raise RequestError(f"{param} holds a control character", param=param)
    if _SCHEME.match(text) or text.startswith("//") or "#" in text:
        raise RequestError(f"{param} must be a path like /v1/chat/completions, not a URL", param=param)
    raw_path, _, query = text.partition("?")
    segments = [segment for segment in _decoded(raw_path, param).split("/") if segment]
    if any(segment in (".", "..") for segment in segments):
        raise RequestError(f'{param} must not hold "." or ".." segments', param=param)
    path = "/" + "/".join(segments)
    if path.startswith(f"{_GATEWAY_PREFIX}/v1/"):
        path = path.removeprefix(_GATEWAY_PREFIX)
    return path, query


def read_method(value: Any, param: str) -> str:
    """An HTTP method in capitals."""
    method = value.strip().upper() if isinstance(value, str) else None
    if method not in METHODS:
        raise RequestError(f"{param} must be one of {', '.join(METHODS)}, not {describe(value)}", param=param)
    return method


def _decoded(raw_path: str, param: str) -> str:
    try:
        path = unquote(raw_path, errors="strict")
    except UnicodeDecodeError as error:
        raise RequestError(f"{param} holds a percent code that is not UTF-8", param=param) from error
    # "%" would be a second round for whoever decodes again; the others end a path for some readers, or, like
    # the blank, would be stripped by the next one.
    refused = set("%?#\\ ")
    if any(
        character in refused or unicodedata.category(character) in _REFUSED_CATEGORIES for character in path
    ):
        raise RequestError(f"{param} holds a character that no route has", param=param)
    return path
