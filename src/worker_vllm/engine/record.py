"""What one job did in the engine, counted in one place for native jobs and for every route."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from worker_vllm.engine.demand import Demand, Streams

StatesOf = Callable[[str], Sequence[Any]]
"""vLLM's states of an engine request, by the request's id."""


@dataclass(slots=True)
class JobRecord:
    """One job's figures, filled while it runs. Times are `time.monotonic()` seconds.

    Attributes:
        job_id: the platform's id of the job.
        route: "native", or the route that the job asks for.
        received_at: when the handler was given the job.
        scheduled_at: when the engine began the job's first request; None where its statistics are off.
        prompt_tokens: token ids that the engine was given, over all the job's prompts.
        output_tokens: token ids that the engine made, over all choices.
        first_token_at: when the first of them was there; None while there is none (and for embeddings).
        finished_at: when the job ended; set by the handler.
        finish_reason: the last choice's, as vLLM names it.
        error_code: the status of the error that ended the job, if one did; set by the handler.
        error_type: its type and, where it has one, the field it names: never its text, which can quote the
            job.
        unfinished: ids of engine requests that have begun and not come to their end.
        demand: the reader of a stream that goes at the platform's pace; None for every other job.
    """

    job_id: str
    route: str = "native"
    received_at: float = field(default_factory=time.monotonic)
    scheduled_at: float | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    first_token_at: float | None = None
    finished_at: float | None = None
    finish_reason: str | None = None
    error_code: int | None = None
    error_type: str | None = None
    unfinished: set[str] = field(default_factory=set)
    demand: Demand | None = None

    def take_usage(self, usage: Any) -> None:
        """Replace the counts by those of an OpenAI `usage` object.

        For beam search, whose engine requests are steps of one beam each: their sum says nothing to a user.
        """
        if isinstance(usage, dict):
            self.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self.output_tokens = int(usage.get("completion_tokens") or 0)


current_record: ContextVar[JobRecord | None] = ContextVar("current_record", default=None)
"""The record of the job that the running task works for. Tasks inherit it, so vLLM's own do too."""


def current_demand() -> Demand:
    """The reader of the current job's stream; one that no engine request follows where there is none."""
    record = current_record.get()
    return (record.demand if record is not None else None) or Demand(Streams())


def observe(
    outputs: AsyncGenerator[Any, None], params: Any, request_id: str, states_of: StatesOf = lambda _: ()
) -> AsyncGenerator[Any, None]:
    """Count an engine request's outputs for the current job as they pass; the same outputs come out, those of
    a stream as its reader asks for them.

    The caller closes what it gets, which closes `outputs`. Without a current job they are returned as they
    are.
    """
    record = current_record.get()
    if record is None:
        return outputs
    kind = getattr(getattr(params, "output_kind", None), "name", "")
    return _counted(outputs, record, request_id, kind, states_of)


async def _counted(
    outputs: AsyncGenerator[Any, None], record: JobRecord, request_id: str, kind: str, states_of: StatesOf
) -> AsyncGenerator[Any, None]:
    """Runs once per streamed update of every stream: keep it below 2 µs."""
    demand = record.demand if kind == "DELTA" else None
    is_tapped = False
    record.unfinished.add(request_id)
    prompt_is_counted = False
    told: dict[int, int] | None = {} if kind == "CUMULATIVE" else None
    try:
        async for output in outputs:
            if not prompt_is_counted:
                record.prompt_tokens += len(output.prompt_token_ids or ())
                prompt_is_counted = True
                if record.scheduled_at is None:
                    record.scheduled_at = _engine_time(output, "scheduled_ts")
            choices = output.outputs
            if isinstance(choices, list):  # a pooling output is a single object without tokens
                tokens = 0
                for choice in choices:
                    tokens += len(choice.token_ids)
                    if told is not None:
                        tokens -= told.get(choice.index, 0)
                        told[choice.index] = len(choice.token_ids)
                    if choice.finish_reason is not None:
                        record.finish_reason = choice.finish_reason
                record.output_tokens += tokens
                if record.first_token_at is None and tokens:
                    record.first_token_at = _first_token_time(output, kind)
            # Before the yield: whoever takes the last output need not come back for the end.
            if output.finished:
                record.unfinished.discard(request_id)
            if demand is None:
                yield output
                continue
            if not is_tapped:
                demand.tap(states_of(request_id))
                is_tapped = True
            demand.taken(last=not record.unfinished)
            yield output
            demand.passed()
    finally:
        await outputs.aclose()


def _first_token_time(output: Any, kind: str) -> float:
    """Now, except for a plain answer, which comes at once: its statistics know when the first token came."""
    stamp = _engine_time(output, "first_token_ts") if kind == "FINAL_ONLY" else None
    return stamp or time.monotonic()


def _engine_time(output: Any, name: str) -> float | None:
    """A time from the request's statistics; the engine process reads the same system-wide monotonic clock."""
    return getattr(getattr(output, "metrics", None), name, 0.0) or None
