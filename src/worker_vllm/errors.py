"""Every error this worker raises on purpose, and what a caller does about each.

WorkerError
 ├── RequestError                 the caller's fault; only this job fails
 │    ├── RouteNotFoundError      no such route for this model
 │    ├── RouteForbiddenError     the route exists, but the operator has not opened it
 │    ├── MediaError              what a media URL names cannot be had
 │    └── ApplicationError        vLLM's own app answered the request with an error body
 ├── RetryableError               not the caller's fault; the same job can succeed elsewhere or later
 │    ├── OverloadedError         the worker's queue is full
 │    └── ShuttingDownError       the worker is leaving service
 ├── DeadlineError                the job ran out of its time
 ├── OutputTooLargeError          the answer does not fit the platform's limits
 ├── InternalError                a fault of ours in one job; the engine is fine
 ├── EngineDeadError              the engine is gone; the worker must leave service
 └── StartupFailure               the worker never came into service (raised before any job)
      ├── ConfigurationError      bad settings, all problems at once; a restart cannot mend it
      └── EngineStartError        the engine could not be built

`code` is the HTTP status as a number, which is what vLLM's own error bodies carry, so a client reads one
shape whichever side refused it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


class WorkerError(Exception):
    """An error with a place on the wire.

    Attributes:
        message: one sentence for the caller; never a traceback, path or secret.
        param: the offending field, where there is one.
        http_status: the status an HTTP server would answer with; also the `code` on the wire.
        type: OpenAI's error type.
        fatal: whether the worker must leave service after it.
    """

    http_status = 500
    type = "InternalServerError"
    fatal = False

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param

    @property
    def code(self) -> int:
        """The `code` on the wire: the HTTP status."""
        return self.http_status

    def to_error(self) -> dict[str, Any]:
        """The inner error object: message, type, param and code."""
        return {"message": self.message, "type": self.type, "param": self.param, "code": self.code}

    def to_json(self) -> str:
        """`to_error` as JSON text: what stands under `error` at the RunPod edge, where the SDK applies
        `str()` to whatever it finds (runpod rp_job.py), so that only text survives."""
        return json.dumps(self.to_error(), ensure_ascii=False)


class RequestError(WorkerError):
    """The request itself is wrong; a 400 that names the field."""

    http_status = 400
    type = "BadRequestError"


class RouteNotFoundError(RequestError):
    """No such route, or not one that this model's task has."""

    http_status = 404
    type = "NotFoundError"


class RouteForbiddenError(RequestError):
    """A route that only the operator can open."""

    http_status = 403
    type = "PermissionDeniedError"


class MediaError(RequestError):
    """What a media URL names cannot be had or read; the status is vLLM's own for that."""

    http_status = 422
    type = "UnprocessableEntityError"


class ApplicationError(RequestError):
    """vLLM's app answered with an error; its object is passed on as it is.

    Args:
        status: the app's HTTP status.
        error: the app's inner error object (message, type, param, code), or None where the body was not one.
        body: the whole body, for OPENAI_ERRORS=body.
    """

    def __init__(self, status: int, error: Mapping[str, Any] | None, body: Any) -> None:
        detail = dict(error or {})
        param = detail.get("param")
        super().__init__(str(detail.get("message") or f"vLLM answered HTTP {status}"), param=param)
        self.http_status = status
        self.type = str(detail.get("type") or "BadRequestError")
        self.body = body


class RetryableError(WorkerError):
    """Not the caller's fault; sending the job again can succeed."""

    http_status = 503
    type = "ServiceUnavailableError"


class OverloadedError(RetryableError):
    """The worker holds as many jobs as it may."""

    http_status = 429
    type = "RateLimitError"


class ShuttingDownError(RetryableError):
    """The worker is leaving service and could not finish this job."""


class DeadlineError(WorkerError):
    """The job's time ran out."""

    http_status = 504
    type = "TimeoutError"


class OutputTooLargeError(WorkerError):
    """The output exceeds what the platform takes in one message."""

    http_status = 413
    type = "OutputTooLargeError"


class InternalError(WorkerError):
    """A fault of the worker in one job. The traceback is in the log, not here."""


class EngineDeadError(WorkerError):
    """vLLM's engine is gone. Nothing can be generated in this process any more."""

    type = "EngineDeadError"
    fatal = True


class StartupFailure(WorkerError):
    """The worker could not come into service.

    Attributes:
        exit_code: what the process exits with.
        permanent: whether a restart with the same settings would fail the same way.
    """

    exit_code = 3
    permanent = False

    def in_one_line(self) -> str:
        """What failed and why, as one line."""
        return " ".join(line.strip() for line in self.message.splitlines())


class ConfigurationError(StartupFailure):
    """Settings that cannot work.

    Args:
        problems: one line each: variable, value, what is expected, the nearest right name or value.
    """

    exit_code = 2
    permanent = True

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = f"bad configuration ({count} problem{'' if count == 1 else 's'})"
        super().__init__("\n".join([f"{head}:", *(f"  - {problem}" for problem in self.problems)]))

    def in_one_line(self) -> str:
        """See `StartupFailure.in_one_line`."""
        return "bad configuration: " + "; ".join(self.problems)


class EngineStartError(StartupFailure):
    """vLLM could not build its engine; the message says why in one line."""

    def __init__(self, message: str, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent
