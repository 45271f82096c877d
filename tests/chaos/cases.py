"""What a chaotic run asks for, of which worker, and what the answer says: no faults here."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests import models
from worker_vllm import sse

ROOT = Path(__file__).parents[2]
Kind = Literal["native", "chat", "completions"]
KILLS = ("engine SIGKILL", "engine SIGSTOP", "worker SIGKILL", "worker SIGTERM", "worker SIGTERM twice")

PROMPTS = (
    "the river",
    "blue sky over France",
    "one two three",
    "a cat is",
    "seven dogs and the capital of Italy",
    "what is the time",
)
# Short ones alone: the tiny model's greedy answers to them are the same in a batch of any size.


@dataclass(frozen=True)
class Case:
    """One question: how it is asked, and how long its answer is."""

    kind: Kind
    prompt: str
    tokens: int


class RealTarget:
    """The worker as a container starts it, with vLLM's engine on this CPU and the tiny model."""

    name = "vLLM's engine"
    kinds: tuple[Kind, ...] = ("native", "chat", "completions")
    tokens = (4, 24, 96)
    endless_tokens = 1900
    too_slow_ms = 2000
    """Less than RunPod's shortest limit, because the tiny model is through with its context by then."""
    stall_seconds = 3.0
    kills: tuple[str, ...] = (*KILLS, "executor SIGKILL", "executor SIGSTOP")
    metrics_route: str | None = "/metrics"

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(ROOT / "src/handler.py")]

    def environment(self, home: Path) -> dict[str, str]:
        """The worker's environment, with nothing of this process's but PATH."""
        return {
            **_environment(home),
            "MODEL_NAME": str(models.tiny()),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_LOGGING_LEVEL": "WARNING",
            "TOKENIZERS_PARALLELISM": "false",
            "ENFORCE_EAGER": "true",
            "WORKER_ROUTES": "/metrics",
            "ENGINE_STALL_S": str(self.stall_seconds),
        }

    def job_input(self, case: Case, *, stream: bool) -> dict[str, Any]:
        limits = {"max_tokens": case.tokens, "temperature": 0, "ignore_eos": True}
        if case.kind == "native":
            return {"prompt": case.prompt, "stream": stream, "sampling_params": limits}
        body = {"stream": stream, **limits}
        if case.kind == "chat":
            body["messages"] = [{"role": "user", "content": case.prompt}]
            return {"openai_route": "/v1/chat/completions", "openai_input": body}
        return {"openai_route": "/v1/completions", "openai_input": {"prompt": case.prompt, **body}}


class ScriptedTarget:
    """The same worker with scripted engines in vLLM's place, whose steps are made by a process."""

    name = "a scripted engine"
    kinds: tuple[Kind, ...] = ("native", "chat")
    tokens = (2, 6, 16)
    endless_tokens = 2000
    too_slow_ms = 5000
    stall_seconds = 1.0
    kills: tuple[str, ...] = KILLS
    metrics_route: str | None = None

    @property
    def command(self) -> list[str]:
        return [sys.executable, str(ROOT / "tests/contract/scripted_worker.py")]

    def environment(self, home: Path) -> dict[str, str]:
        return {
            **_environment(home),
            "PYTHONPATH": str(ROOT / "src"),
            "SCRIPT_EVENTS": str(home / "events"),
            "SCRIPT_ENGINE_PROCESS": "1",
            "ENGINE_STALL_S": str(self.stall_seconds),
        }

    def job_input(self, case: Case, *, stream: bool) -> dict[str, Any]:
        words = [f" {case.prompt.split()[n % len(case.prompt.split())]}-{n}" for n in range(case.tokens)]
        steps: list[Any] = []
        pending: list[str] = []
        for word in words:
            steps.append(["step", 0.01])
            pending.append(word)
            if stream:
                steps.append(["yield", _chunk(case.kind, "".join(pending))])
                pending = []
        if not stream:
            steps.append(["yield", _answer(case.kind, "".join(pending))])
        elif case.kind == "chat":
            steps.append(["yield", sse.encode(sse.DONE)])
        if case.kind == "native":
            return {"prompt": json.dumps(steps), "stream": stream}
        body = {"messages": [{"role": "user", "content": json.dumps(steps)}], "stream": stream}
        return {"openai_route": "/v1/chat/completions", "openai_input": body}


Target = RealTarget | ScriptedTarget


def _environment(home: Path) -> dict[str, str]:
    temporary = home / "tmp"
    temporary.mkdir(exist_ok=True)
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "TMPDIR": str(temporary),
        "MAX_CONCURRENCY": "12",
        "SHUTDOWN_GRACE_S": "10",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _chunk(kind: Kind, text: str) -> Any:
    if kind == "native":
        return {"choices": [{"tokens": [text]}]}
    return sse.encode(json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}))


def _answer(kind: Kind, text: str) -> Any:
    if kind == "native":
        return {"choices": [{"tokens": [text]}]}
    return {"object": "chat.completion", "choices": [{"index": 0, "message": {"content": text}}]}


@dataclass(frozen=True)
class Reading:
    """What a job's chunks say, streamed or final.

    Attributes:
        text: the answer's text, as far as it goes.
        error: the error object that a stream ended with, if it did.
        closed: whether a stream of events has said that it is at its end.
    """

    text: str
    error: Mapping[str, Any] | None = None
    closed: bool = False


def read(chunks: Iterable[Any]) -> Reading:
    """Join native items, server-sent events and whole answers alike."""
    chunks = list(chunks)
    if chunks and all(isinstance(chunk, str) for chunk in chunks):
        return _read_events("".join(chunks))
    parts: list[str] = []
    error = None
    for chunk in chunks:
        for choice in chunk["choices"]:
            error = choice.get("error") or error
            parts += choice.get("tokens") or []
            parts.append(choice.get("text") or (choice.get("message") or {}).get("content") or "")
    return Reading("".join(parts), error)


def _read_events(text: str) -> Reading:
    parts: list[str] = []
    error, closed = None, False
    for event in text.split("\n\n"):
        data = sse.data_of(event + "\n\n")
        if data == sse.DONE:
            closed = True
        elif data:
            value = json.loads(data)
            error = value.get("error") or error
            for choice in value.get("choices", ()):
                parts.append(choice.get("text") or (choice.get("delta") or {}).get("content") or "")
    return Reading("".join(parts), error, closed)
