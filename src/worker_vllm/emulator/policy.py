"""Every choice the local platform makes where it could make another, as one frozen value.

Each field carries a tag that says how well the default is known: DOC (documented), SRC (read in official
source), OBS (seen on the live service), INF (inferred), UNV (could not be verified: the default is a guess
that a user may replace), LOCAL (a choice of this machine, RunPod has no such thing). `Policy.describe`
lists them for the docs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints

MEGABYTE = 1024 * 1024

Tag = Literal["DOC", "SRC", "OBS", "INF", "UNV", "LOCAL"]


def _choice(default: Any, tag: Tag, why: str) -> Any:
    return field(default=default, metadata={"tag": tag, "why": why})


class PolicyError(ValueError):
    """A `NAME=VALUE` that names no choice, or whose value does not fit it."""


class PolicyRow(NamedTuple):
    """One choice as the docs print it."""

    name: str
    default: Any
    tag: str
    why: str

    def __str__(self) -> str:
        return f"{self.name}={self.default}  [{self.tag}] {self.why}"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """The platform's choices. A time is in the unit of its name; 0 means off where the text says so."""

    # Identity
    endpoint_id: str = _choice("local", "LOCAL", "the one endpoint of this platform; any other id is a 404")
    region: str = _choice("u1", "OBS", "suffix of job ids")

    # Who may call
    require_key: bool = _choice(
        False, "LOCAL", "401 without any key, even when no --api-key was given (live: DOC)"
    )
    check_worker_key: bool = _choice(
        False,
        "LOCAL",
        "401 for a worker with a wrong key; off because ~/.runpod/config.toml replaces the SDK's key",
    )
    rate_limits: bool = _choice(False, "DOC", "the documented limits per 10 s and concurrent calls; off here")
    rate_limit_per_worker: int = _choice(
        0, "UNV", "allowance that each running worker adds to a limit per 10 s"
    )

    queue_limit_per_worker: int = _choice(
        500, "DOC", "older text: with rate_limits, 429 for a longer queue than this"
    )

    # Sizes
    run_limit_bytes: int = _choice(10 * MEGABYTE, "DOC", "largest body of /run")
    runsync_limit_bytes: int = _choice(20 * MEGABYTE, "DOC", "largest body of /runsync")
    gateway_limit_bytes: int = _choice(20 * MEGABYTE, "INF", "largest body of /openai/*")
    oversize_status: int = _choice(413, "UNV", "code for a body over its limit")
    chunk_limit_bytes: int = _choice(1 * MEGABYTE, "DOC", "largest chunk on job-stream")
    oversize_chunk: Literal["split", "reject"] = _choice("split", "DOC", "strict: reject with 400 (OBS)")
    enforce_output_limit: bool = _choice(False, "UNV", "refuse a final output over run_limit / runsync_limit")
    oversize_output_status: int = _choice(413, "UNV", "code for such an output on job-done")

    # Times of a job
    run_retention_s: float = _choice(1800.0, "DOC", "how long a finished /run job is kept")
    runsync_retention_s: float = _choice(60.0, "DOC", "how long a finished /runsync job is kept")
    execution_timeout_ms: int = _choice(600_000, "DOC", "policy.executionTimeout where the job gives none")
    ttl_ms: int = _choice(86_400_000, "DOC", "policy.ttl where the job gives none; counted from submission")
    min_execution_timeout_ms: int = _choice(5_000, "DOC", "smallest policy.executionTimeout")
    min_ttl_ms: int = _choice(10_000, "DOC", "smallest policy.ttl")
    max_policy_ms: int = _choice(604_800_000, "DOC", "largest policy.executionTimeout and policy.ttl: 7 days")
    policy_out_of_range: Literal["reject", "clamp"] = _choice("reject", "UNV", "400, or the nearest bound")
    ttl_in_queue: Literal["gone", "timed_out"] = _choice(
        "gone", "UNV", "a job that expires before pick-up: 404 at once, or TIMED_OUT for its retention"
    )
    runsync_wait_ms: int = _choice(90_000, "DOC", "how long /runsync waits without ?wait")
    min_wait_ms: int = _choice(1_000, "DOC", "smallest ?wait; a smaller one is raised to it")
    max_wait_ms: int = _choice(300_000, "DOC", "largest ?wait; a larger one is lowered to it")
    timed_out_error: str = _choice("job timed out", "UNV", "`error` of a job past its executionTimeout")

    # Operations
    stream_hold_s: float = _choice(0.0, "UNV", "how long /stream waits for a chunk; 0 answers at once")
    retry_refused_status: int = _choice(400, "UNV", "/retry of a job that is neither FAILED nor TIMED_OUT")
    ready_while_booting: bool = _choice(True, "OBS", "/health counts a booting container as ready")
    webhook_delays_s: tuple[float, ...] = _choice(
        (10.0, 10.0), "DOC", "waits before the further tries of a webhook (measured once: 5 s, 15 s)"
    )
    webhook_timeout_s: float = _choice(30.0, "UNV", "one try of a webhook")

    # OpenAI gateway
    gateway_wait_s: float = _choice(100.0, "OBS", "a plain OpenAI call is cut after this")
    gateway_wait_status: int = _choice(524, "OBS", "code of that cut")
    gateway_several_outputs: Literal["list", "first"] = _choice(
        "list", "UNV", "a plain call whose worker gave several outputs"
    )
    gateway_forward_query: bool = _choice(False, "UNV", "append the query string to openai_route")
    gateway_keep_alive_s: float = _choice(0.0, "UNV", "SSE comment while a stream waits; 0 sends none")
    gateway_stream_limit_s: float = _choice(0.0, "UNV", "longest OpenAI stream; 0 is no limit")
    gateway_broken_stream: Literal["end", "abort"] = _choice(
        "end", "UNV", "a job that fails in mid-stream: end the body, or cut the connection"
    )
    gateway_stream_retry: Literal["end", "continue"] = _choice(
        "end", "UNV", "a lost worker in mid-stream: end the stream, or go on with the second attempt's text"
    )
    gateway_cancel_on_disconnect: bool = _choice(False, "UNV", "a client that hangs up cancels its job")

    # Worker side
    take_hold_s: float = _choice(25.0, "UNV", "how long job-take waits before 204")
    stop_hold_s: float = _choice(25.0, "UNV", "how long job-stop waits before 204")
    ping_interval_ms: int = _choice(4_000, "OBS", "RUNPOD_PING_INTERVAL given to workers")
    lost_after_s: float = _choice(30.0, "UNV", "a running job that no ping names for so long is lost")
    lost_retries: int = _choice(1, "OBS", "times a lost job is queued again before it is FAILED")
    lost_error: str = _choice(
        "job timed out after {retries} retries", "OBS", "`error` of a job lost for good"
    )
    lost_on_exit: bool = _choice(True, "INF", "the end of a worker's process loses its jobs at once")
    late_result: Literal["drop", "accept"] = _choice(
        "drop",
        "UNV",
        "a result for a job that its worker no longer holds; accept: it completes a job back in the queue",
    )
    send_policy: bool = _choice(False, "UNV", "hand the job's policy object to the worker")
    stop_again_s: float = _choice(
        0.0, "UNV", "send a stop again while pings still name the job; 0 sends it once"
    )
    jobs_while_stopping: bool = _choice(False, "UNV", "hand jobs to a worker that was told to end")
    inject_endpoint_id: bool = _choice(
        False, "SRC", "set RUNPOD_ENDPOINT_ID (live: set; the SDK then logs JSON)"
    )

    # This machine
    worker_rtt_ms: float = _choice(
        0.0, "LOCAL", "round trip between worker and platform (live: about 100 ms, OBS)"
    )
    worker_grace_s: float = _choice(
        35.0, "UNV", "SIGTERM to SIGKILL of a worker (its own drain takes up to 30 s)"
    )
    restart_delay_s: float = _choice(
        0.5, "LOCAL", "first wait before a dead worker is started again; doubles"
    )
    restart_max_delay_s: float = _choice(30.0, "LOCAL", "longest such wait")
    restart_limit: int = _choice(
        10, "LOCAL", "deaths in a row after which a worker is given up (live: 7 days)"
    )
    stable_after_s: float = _choice(
        10.0, "LOCAL", "service after which a worker's earlier deaths are forgotten"
    )

    def strict(self) -> Policy:
        """This policy with every leniency off, as the live service is at its hardest."""
        return replace(
            self,
            require_key=True,
            check_worker_key=True,
            rate_limits=True,
            oversize_chunk="reject",
            enforce_output_limit=True,
            inject_endpoint_id=True,
        )

    def with_settings(self, settings: Iterable[str]) -> Policy:
        """This policy with `NAME=VALUE` texts applied, in order.

        Raises:
            PolicyError: an unknown name, or a value of the wrong kind.
        """
        hints = get_type_hints(Policy)
        changes: dict[str, Any] = {}
        for setting in settings:
            name, equals, text = setting.partition("=")
            if not equals or name not in hints:
                raise PolicyError(
                    f"{setting!r}: expected NAME=VALUE, NAME being one of {', '.join(sorted(hints))}"
                )
            changes[name] = _convert(name, hints[name], text)
        return replace(self, **changes)

    @classmethod
    def describe(cls) -> tuple[PolicyRow, ...]:
        """Every choice with its default, tag and reason, in the order of this file."""
        return tuple(
            PolicyRow(entry.name, entry.default, entry.metadata["tag"], entry.metadata["why"])
            for entry in fields(cls)
        )


def _convert(name: str, kind: Any, text: str) -> Any:
    """The value that `text` stands for in a field of type `kind`."""
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        if get_origin(kind) is Literal:
            return {choice: choice for choice in get_args(kind)}[text]
        if get_origin(kind) is tuple:
            return tuple(float(part) for part in text.split(",") if part)
        return kind(text)
    except (KeyError, ValueError):
        expected = "true or false" if kind is bool else str(getattr(kind, "__name__", kind))
        if get_origin(kind) is Literal:
            expected = " or ".join(get_args(kind))
        raise PolicyError(f"{name}={text}: expected {expected}") from None
