"""An error inside a stream: in the form of the stream's own chunks, so that its reader meets it."""

from __future__ import annotations

import json
from typing import Any

from worker_vllm import sse


def error_event(chunk: Any, error: dict[str, Any]) -> list[Any]:
    """The chunks that end a stream of chunks like `chunk` with `error` (message, type, param, code).

    Text gets a server-sent event and [DONE]; a list of parsed events another such list; a native item one
    with the error inside a choice, since at the top the SDK would take it for the job's result. None
    where there was no chunk yet, or where a chunk is a whole answer.
    """
    if isinstance(chunk, str):
        return [sse.encode(json.dumps({"error": error}, ensure_ascii=False)) + sse.encode(sse.DONE)]
    if isinstance(chunk, list):
        return [[{"error": error}]]
    if isinstance(chunk, dict) and "choices" in chunk and "object" not in chunk:
        kept = {key: chunk[key] for key in ("prompt_index", "usage") if key in chunk}
        return [{"choices": [{"tokens": [], "finish_reason": "error", "error": error}], **kept}]
    return []
