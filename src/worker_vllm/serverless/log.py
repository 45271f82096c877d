"""What the worker writes to its log: one line per event, and one per job at its end.

Prompts and answers are never written. Ids and routes come from outside, so they are made one bounded,
printable line before they reach a log, a header or the engine.
"""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Mapping
from typing import Any, Literal

from worker_vllm.engine.record import JobRecord

MAX_ID_LENGTH = 128
MAX_ROUTE_LENGTH = 200

_UNSAFE = re.compile(r"[^!-.0-\[\]-~]")  # all but printable ASCII without the slashes

logger = logging.getLogger(__name__)


def configure(log_format: Literal["text", "json"], level: str) -> None:
    """Send the package's log to stdout, as text or as JSON lines. Repeatable: the last call wins.

    Only our own logger is touched; vLLM and the SDK configure theirs.

    Args:
        level: a name that `logging` knows, in any case.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_JsonLines() if log_format == "json" else _TextLines())
    package = logging.getLogger("worker_vllm")
    package.handlers[:] = [handler]
    package.setLevel(level.upper())
    package.propagate = False


def job_ended(record: JobRecord) -> None:
    """Write the job's one line: who, which route, how many tokens, how long, how it ended.

    `queue` is the time from receipt to the engine's first step for it, `ttft` and `total` also count from
    receipt; all in seconds, "-" for what never happened.
    """
    fields = {
        "route": record.route,
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "queue": _seconds(record.received_at, record.scheduled_at),
        "ttft": _seconds(record.received_at, record.first_token_at),
        "total": _seconds(record.received_at, record.finished_at),
        "finish": record.finish_reason,
        "error": record.error_code,
        "error_type": record.error_type and one_line(record.error_type, MAX_ID_LENGTH),
    }
    words = " ".join(f"{name}={'-' if value is None else value}" for name, value in fields.items())
    logger.info("job %s %s", record.job_id, words, extra={"job": {"requestId": record.job_id, **fields}})


def one_line(text: object, limit: int) -> str:
    """`text` as one printable ASCII line of at most `limit` characters; anything else becomes "_".

    Safe for logs, paths, headers and request ids; "-" when nothing is left.
    """
    return _UNSAFE.sub("_", str(text)[:limit]) or "-"


def one_line_route(route: str) -> str:
    """A route for the log: like `one_line`, with its slashes kept."""
    return "/".join(
        one_line(part, MAX_ROUTE_LENGTH) if part else "" for part in route[:MAX_ROUTE_LENGTH].split("/")
    )


def _seconds(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else round(end - begin, 4)


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


class _TextLines(logging.Formatter):
    """Level, UTC time and message; a multi-line message stays one record with its lines indented."""

    def __init__(self) -> None:
        super().__init__("%(levelname)-7s %(asctime)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802 - logging's name
        return _utc(record.created)

    def format(self, record: logging.LogRecord) -> str:
        return super().format(record).replace("\n", "\n    ")


class _JsonLines(logging.Formatter):
    """One JSON object a line, with the keys RunPod's log viewer knows (requestId, level, message)."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname,
            "message": record.getMessage(),
        }
        job = getattr(record, "job", None)
        if isinstance(job, Mapping):
            line.update(job)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line)
