"""vLLM's exceptions in terms of ours: by type, never by text, and in this one place."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Any

from worker_vllm import errors, vllm_compat


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn what vLLM raises inside the block into a WorkerError, the original as its cause."""
    try:
        yield
    except _foreign() as error:
        raise translate(error) from error


@cache
def _foreign() -> tuple[type[BaseException], ...]:
    names = ("EngineDeadError", "EngineGenerateError", "GenerationError", "VLLMValidationError")
    optional = ("VLLMClientError", "GracefulHTTPError")
    # a chat template that refuses these messages raises jinja2's TemplateError
    template_error: Any = import_module("jinja2").TemplateError
    plain = (ValueError, TypeError, OverflowError, NotImplementedError, template_error)
    return (
        *(vllm_compat.load(name) for name in names),
        *filter(None, map(vllm_compat.load, optional)),
        *plain,
    )


def translate(error: BaseException) -> errors.WorkerError:
    """The WorkerError that says what `error`, raised by vLLM, means for the job. By type, never by text."""
    if isinstance(error, errors.WorkerError):
        return error
    if isinstance(error, vllm_compat.load("EngineDeadError")):
        return errors.EngineDeadError("the engine died; this worker is leaving service")
    if _is_a(error, "GracefulHTTPError"):
        return errors.OverloadedError(str(error))
    if _is_a(error, "RetryableRequestError"):
        return errors.RetryableError(str(error))
    if isinstance(error, vllm_compat.load("GenerationError")):
        return errors.InternalError("the engine failed on this request")
    if isinstance(error, vllm_compat.load("EngineGenerateError")):
        # Older versions wrap what their own input checks raise; the wrapped error knows whose fault it was.
        cause = error.__cause__
        if cause is not None and isinstance(cause, _foreign()) and not isinstance(cause, type(error)):
            return translate(cause)
        return errors.InternalError("the engine failed on this request")
    if _is_a(error, "VLLMNotFoundError"):
        return errors.ApplicationError(404, {"message": str(error), "type": "NotFoundError"}, None)
    if _is_a(error, "VLLMUnprocessableEntityError"):  # an image that cannot be fetched, and the like
        detail = {"message": _sentence(error), "type": "UnprocessableEntityError"}
        return errors.ApplicationError(422, {**detail, "param": getattr(error, "parameter", None)}, None)
    if isinstance(error, _foreign()):
        return _request_error(error)
    return errors.InternalError("vLLM's front end failed on this request")


def _is_a(error: BaseException, name: str) -> bool:
    kind = vllm_compat.load(name)
    return kind is not None and isinstance(error, kind)


def _request_error(error: BaseException) -> errors.RequestError:
    details = getattr(error, "errors", None)
    if callable(details):  # pydantic: name the first field
        first = details()[0]
        field = ".".join(str(part) for part in first["loc"] if isinstance(part, int) or part.isidentifier())
        return errors.RequestError(f"{field}: {first['msg']}" if field else first["msg"], param=field or None)
    return errors.RequestError(_sentence(error), param=getattr(error, "parameter", None))


def _sentence(error: BaseException) -> str:
    # str() of a validation error repeats the parameter and its value, which is the caller's, behind this
    return str(error.args[0] if error.args else error) or type(error).__name__
