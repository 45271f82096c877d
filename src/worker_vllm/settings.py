"""The worker's own settings: one frozen model, built once from a mapping.
 A field's variable is its name in upper case; other spellings stand in the field's `NAMES`. What a value
does is in its description, from which `docs/configuration.md` and the Hub's form are written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from worker_vllm import values
from worker_vllm.addresses import Exceptions

Source = Literal["default", "profile", "file", "environment", "extra_args", "baked"]


@dataclass(frozen=True)
class Effective:
    """A value in force, and where it came from.

    Attributes:
        value: plain data: text, number, boolean, list, dict or None.
        source: which of the sources set it.
        variable: the variable (or key or flag) that set it, as the user wrote it; None for defaults.
        secret: whether the value must never be shown.
    """

    value: Any
    source: Source = "default"
    variable: str | None = None
    secret: bool = field(default=False, compare=False)

    def __repr__(self) -> str:
        return f"Effective({self.shown()!r}, {self.source!r}, {self.variable!r})"

    def shown(self) -> Any:
        """The value, or "***" in its place where it is a secret."""
        return "***" if self.secret and self.value is not None else self.value


class WorkerSettings(BaseModel):
    """Everything that the worker itself can be told; vLLM's own arguments are elsewhere.

    Times are in seconds, sizes in bytes.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_concurrency: int | None = Field(
        None,
        ge=1,
        description="How many jobs the worker holds at once. Unset: as many as the engine can run together, "
        "computed at start.",
    )
    default_max_tokens: int = Field(
        100, ge=1, description="Tokens of answer for a native job that does not say max_tokens."
    )
    default_batch_size: int | None = Field(
        None,
        ge=1,
        description="Most tokens in one streamed chunk of a job that does not say max_batch_size. Unset "
        "(or 50, which the old form always sent): a chunk holds what was generated while the last one "
        "was delivered.",
    )
    min_batch_size: int | None = Field(
        None,
        ge=1,
        description="Tokens in the first streamed chunk; later ones grow by the growth factor up to the "
        "batch size. Unset (or 1): the first token goes out at once.",
    )
    batch_size_growth_factor: float | None = Field(
        None,
        gt=0,
        description="By how much each streamed chunk is larger than the last. Unset (or 3): not used.",
    )
    raw_openai_output: bool = Field(
        True,
        description="Streamed chat and completion answers as raw server-sent events (true), which RunPod's "
        "OpenAI gateway needs, or as lists of parsed objects (false).",
    )
    openai_errors: Literal["fail", "body"] = Field(
        "fail",
        description="What an OpenAI client gets for a request that vLLM refuses: a FAILED job (fail), or a "
        "completed one whose body is the OpenAI error object (body).",
    )
    request_timeout_s: float = Field(
        3600.0,
        gt=0,
        description="Seconds a job may take in the worker, unless the job brings its own time limit.",
    )
    first_token_timeout_s: float | None = Field(
        None, gt=0, description="Seconds until a job's first token; unset: no limit but the job's own."
    )
    log_format: Literal["text", "json"] = Field(
        "text", description="Log lines for people, or as JSON objects."
    )
    log_level: Literal["debug", "info", "warning", "error", "critical"] = Field(
        "info", description="The least serious log lines that are shown."
    )
    worker_routes: str = Field(
        "inference",
        description="Which of vLLM's routes jobs may reach: inference, all, or inference and these as "
        "well: a comma list such as /metrics,/v1/load_lora_adapter.",
    )
    max_chunk_bytes: int = Field(
        900_000,
        ge=1_000,
        description="Most bytes in one streamed chunk; the platform refuses chunks over 1 MB.",
    )
    shutdown_grace_s: float = Field(
        30.0, ge=0, description="Seconds that jobs in hand get to finish after SIGTERM."
    )
    engine_stall_s: float = Field(
        300.0,
        gt=0,
        description="Seconds without engine progress, while requests wait, after which the engine counts "
        "as dead.",
    )
    media_max_mb: float = Field(
        100.0,
        gt=0,
        description="Most megabytes that are fetched for one media URL (image_url, video_url, audio_url) of "
        "a job.",
    )
    media_fetch_timeout_s: float = Field(
        30.0,
        gt=0,
        description="Seconds for one media URL, redirects and further tries included. Besides, vLLM's own "
        "limits for a try hold: VLLM_IMAGE_FETCH_TIMEOUT and its kin.",
    )
    media_allowed_private: str | None = Field(
        None,
        description="Hosts that media URLs may lead to although they are not public: a comma list of names, "
        "addresses and networks such as minio.internal,10.1.0.0/16, or all. Unset: none, so that "
        "jobs cannot reach what only this machine can.",
    )
    worker_state_file: str | None = Field(
        None,
        description="File in which the worker notes whether it starts, serves or leaves, for "
        "`worker-vllm health`. The image sets it.",
    )
    startup_failure: Literal["exit", "answer"] = Field(
        "exit",
        description="When a start fails in a way that no restart can mend: leave with an exit code "
        "(exit), or stay up and fail each job with the reason (answer).",
    )

    @field_validator("worker_routes")
    @classmethod
    def _check_routes(cls, value: str) -> str:
        words = [word.strip() for word in value.split(",") if word.strip()]
        if not words or any(word not in ("inference", "all") and not word.startswith("/") for word in words):
            raise ValueError("expected inference, all, or routes such as /metrics with commas between them")
        return ",".join(words)

    @field_validator("media_allowed_private")
    @classmethod
    def _check_hosts(cls, value: str | None) -> str | None:
        if value is not None:
            Exceptions.parse(value)
        return value


NAMES: dict[str, tuple[str, ...]] = {
    "min_batch_size": ("MIN_BATCH_SIZE", "DEFAULT_MIN_BATCH_SIZE"),
    "batch_size_growth_factor": ("BATCH_SIZE_GROWTH_FACTOR", "DEFAULT_BATCH_SIZE_GROWTH_FACTOR"),
    "request_timeout_s": ("REQUEST_TIMEOUT_S", "REQUEST_TIMEOUT"),
}
"""The spellings of a setting's variable, the first wins; others have their field's name in upper case
alone. The DEFAULT_ forms were documented and never read, until now."""

NOT_CHOSEN: dict[str, float] = {
    "default_batch_size": 50,
    "min_batch_size": 1,
    "batch_size_growth_factor": 3,
}
"""Values that the old and the new Hub form sent for everyone: the same as leaving the setting alone. Taken
literally they cost a platform round trip for the first few tokens of every stream."""


def names(setting: str) -> tuple[str, ...]:
    """The variables that set `setting`, the strongest first."""
    return NAMES.get(setting, (setting.upper(),))


@dataclass(frozen=True)
class WorkerResult:
    """What `read` found: the settings, where each came from, and what is wrong with the environment."""

    settings: WorkerSettings
    effective: dict[str, Effective]
    problems: tuple[str, ...]


def read(environ: Mapping[str, str]) -> WorkerResult:
    """The worker's settings in `environ`. A bad value is a problem in the result, with its default in its
    place."""
    given: dict[str, Any] = {}
    variables: dict[str, str] = {}
    problems: list[str] = []
    for setting in WorkerSettings.model_fields:
        variable = next((name for name in names(setting) if not values.is_unset(environ.get(name))), None)
        if variable is None:
            continue
        try:
            value = _read_one(setting, environ[variable])
        except ValueError as error:
            problems.append(f"{variable}={values.shown(environ[variable])}: {error}")
            continue
        if value != NOT_CHOSEN.get(setting, object()):
            given[setting], variables[setting] = value, variable
    settings = WorkerSettings(**given)
    effective = {
        setting: Effective(
            getattr(settings, setting),
            "environment" if setting in variables else "default",
            variables.get(setting),
        )
        for setting in WorkerSettings.model_fields
    }
    return WorkerResult(settings, effective, tuple(problems))


def choices(setting: str) -> tuple[str, ...]:
    """The words that a setting takes, where it takes only some."""
    annotation = WorkerSettings.model_fields[setting].annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def kind(setting: str) -> Literal["bool", "int", "float", "text"]:
    """What kind of value a setting takes."""
    annotation = WorkerSettings.model_fields[setting].annotation
    members = (str,) if choices(setting) else get_args(annotation) or (annotation,)
    if bool in members:
        return "bool"
    if int in members:
        return "int"
    return "float" if float in members else "text"


def _read_one(setting: str, raw: str) -> Any:
    value: Any = raw.strip().lower() if choices(setting) else raw.strip()
    if (reader := _READERS.get(kind(setting))) is not None:
        value = reader(raw)
    try:
        return getattr(WorkerSettings(**{setting: value}), setting)
    except ValidationError as error:
        raise ValueError(_explain(error)) from None


def _read_flag(raw: object) -> bool:
    # RAW_OPENAI_OUTPUT was read with int(): any number but 0 is true
    try:
        return values.read_int(raw) != 0
    except ValueError:
        return values.read_bool(raw)


_READERS: dict[str, Callable[[object], Any]] = {
    "bool": _read_flag,
    "int": values.read_int,
    "float": values.read_float,
}


def _explain(error: ValidationError) -> str:
    detail = error.errors()[0]
    if detail["type"] == "literal_error":
        return f"expected {detail['ctx']['expected'].replace(chr(39), '')}"
    if "ctx" in detail and "error" in detail["ctx"]:
        return str(detail["ctx"]["error"])
    return detail["msg"].replace("Input should be", "expected a number")
