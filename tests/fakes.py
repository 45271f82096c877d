"""Scripted stand-ins for vLLM, with the interface that the worker uses: no engine, no vLLM import.

`FakeLLM` plays one script per request. A step is a text (one token of one answer), a tuple of texts (one per
answer, None for no news), `STALL` (nothing more, ever), a `Gate` (nothing until it is opened), or an
exception.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from worker_vllm.engine.lifecycle import EngineHost, EngineLoad
from worker_vllm.engine.record import observe
from worker_vllm.errors import ApplicationError, EngineDeadError, InternalError, RequestError

STALL = object()
Gate = asyncio.Event
Step = Any


class FakeEngineDeath(Exception):
    """What a dead engine raises, in place of vLLM's EngineDeadError."""


@dataclass
class FakePart:
    """vLLM's CompletionOutput."""

    index: int
    text: str
    token_ids: list[int]
    logprobs: Any = None
    finish_reason: str | None = None
    stop_reason: Any = None


@dataclass
class FakeOutput:
    """vLLM's RequestOutput."""

    outputs: list[FakePart]
    prompt_token_ids: list[int]
    finished: bool = False
    prompt_logprobs: Any = None
    metrics: Any = None


@dataclass
class FakeParams:
    """vLLM's SamplingParams, as far as the fake looks at them; the rest is kept to be asserted on."""

    output_kind: Any
    max_tokens: int
    n: int = 1
    given: Mapping[str, Any] = field(default_factory=dict)
    structured_outputs: Any = None


class FakeLLM:
    """AsyncLLM's interface.

    Attributes:
        errored: set it to say that the engine is dead.
        started: request ids, in the order of their beginning.
        aborted: request ids that were closed or cancelled before their end, or aborted by name.
        params: what each request was given, by id.
        shutdowns: how often it was shut down.
    """

    def __init__(self, *, max_model_len: int = 64, tasks: Sequence[str] = ("generate",)) -> None:
        self.errored = False
        self.started: list[str] = []
        self.aborted: list[str] = []
        self.params: dict[str, FakeParams] = {}
        self.adapters: dict[str, Any] = {}
        self.shutdowns = 0
        self.model_config = SimpleNamespace(max_model_len=max_model_len)
        self.output_processor = SimpleNamespace(get_num_unfinished_requests=lambda: len(self._running))
        self._running: set[str] = set()
        self._tasks = tasks
        self._scripts: deque[tuple[Step, ...]] = deque()
        self._default: tuple[Step, ...] = ("Hel", "lo", "!")

    def enqueue(self, *steps: Step) -> None:
        """The next request's script. Without one, a request answers "Hello!"."""
        self._scripts.append(steps)

    def generate(
        self, prompt: Any, sampling_params: FakeParams, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """The outputs of the next script, observed as the real engine's are."""
        steps = self._scripts.popleft() if self._scripts else self._default
        self.adapters[request_id] = options.get("lora_request")
        return observe(self._play(prompt, sampling_params, request_id, steps), sampling_params, request_id)

    async def _play(
        self, prompt: Any, params: FakeParams, request_id: str, steps: Sequence[Step]
    ) -> AsyncGenerator[Any, None]:
        self.started.append(request_id)
        self.params[request_id] = params
        self._running.add(request_id)
        ended = False
        try:
            async for output in _outputs(prompt, params, steps):
                yield output
            ended = True
        finally:
            self._running.discard(request_id)
            if not ended:
                self.aborted.append(request_id)

    async def abort(self, request_id: str | Sequence[str], internal: bool = False) -> None:
        """Note the ids."""
        self.aborted += [request_id] if isinstance(request_id, str) else request_id

    async def get_supported_tasks(self) -> tuple[str, ...]:
        """The tasks it was made with."""
        return tuple(self._tasks)

    async def reset_mm_cache(self) -> None:
        """Nothing."""

    def shutdown(self, timeout: float | None = None) -> None:
        """Count it."""
        self.shutdowns += 1


async def _outputs(
    prompt: Any, params: FakeParams, steps: Sequence[Step]
) -> AsyncGenerator[FakeOutput, None]:
    ids = list(prompt["prompt_token_ids"])
    whole = params.output_kind.name == "FINAL_ONLY"
    texts = [""] * params.n
    counts = [0] * params.n
    for number, step in enumerate(steps):
        if step is STALL:
            await asyncio.Event().wait()
        if isinstance(step, Gate):
            await step.wait()
            continue
        if isinstance(step, BaseException):
            raise step
        last = number == len(steps) - 1
        news = step if isinstance(step, tuple) else (step,)
        parts = [
            FakePart(index, text, [number], finish_reason="stop" if last else None)
            for index, text in enumerate(news)
            if text is not None
        ]
        for part in parts:
            texts[part.index] += part.text
            counts[part.index] += 1
        if whole and last:
            parts = [
                FakePart(index, text, [0] * counts[index], finish_reason="stop")
                for index, text in enumerate(texts)
            ]
        if not whole or last:
            await asyncio.sleep(0)
            yield FakeOutput(parts, ids, finished=last)


class FakeFrontend:
    """`engine.frontend.Frontend` with words for tokens.

    Attributes:
        adapters: adapter names that it knows, with what stands for their LoRA requests.
        rendered: what it was asked to render, in order.
    """

    def __init__(self, llm: FakeLLM, names: Sequence[str]) -> None:
        self.max_model_len = llm.model_config.max_model_len
        self.adapters: dict[str, Any] = {}
        self.rendered: list[Any] = []
        self._names = names

    @contextmanager
    def translated(self) -> Iterator[None]:
        """ValueErrors are the caller's fault, as with vLLM; RuntimeErrors the engine's."""
        try:
            yield
        except FakeEngineDeath as error:
            raise EngineDeadError("the engine died") from error
        except ValueError as error:
            raise RequestError(str(error)) from error
        except RuntimeError as error:
            raise InternalError("the engine failed on this request") from error

    async def adapter(self, model: str | None, messages: Sequence[Mapping[str, Any]] = ()) -> Any:
        if not model or model in self._names:
            return None
        if model in self.adapters:
            return self.adapters[model]
        error = {"message": f"no model {model}", "type": "NotFoundError", "param": "model", "code": 404}
        raise ApplicationError(404, error, {"error": error})

    async def render_prompt(self, prompt: str | Sequence[int], truncate: int | None) -> Any:
        self.rendered.append(prompt)
        ids = [len(word) for word in prompt.split()] if isinstance(prompt, str) else list(prompt)
        return self._checked(ids[-truncate:] if truncate else ids)

    async def render_chat(
        self, messages: Sequence[Mapping[str, Any]], options: Mapping[str, Any], truncate: int | None
    ) -> Any:
        self.rendered.append((list(messages), dict(options)))
        return self._checked([1] * len(messages))

    def sampling_params(
        self,
        params: Mapping[str, Any],
        structured_outputs: Mapping[str, Any] | None,
        *,
        max_tokens: int,
        stream: bool,
    ) -> FakeParams:
        kind = SimpleNamespace(name="DELTA" if stream else "FINAL_ONLY")
        return FakeParams(kind, max_tokens, params.get("n", 1), dict(params), structured_outputs)

    def room(self, rendered: Any) -> int:
        return self.max_model_len - len(rendered["prompt_token_ids"])

    def _checked(self, ids: list[int]) -> Any:
        if not 0 < len(ids) < self.max_model_len:
            raise ValueError(f"{len(ids)} tokens do not fit")
        return {"type": "token", "prompt_token_ids": ids}


class FakeHost(EngineHost):
    """An EngineHost around a FakeLLM; `app` is any ASGI app, or None where no route is asked for.

    Attributes:
        made_ready: how often the work of `ready` was done.
        on_ready: awaited in its place.
    """

    def __init__(
        self, llm: FakeLLM | None = None, app: Any = None, *, names: Sequence[str] = ("model", "alias")
    ) -> None:
        self.llm: FakeLLM
        super().__init__(
            llm or FakeLLM(), Namespace(served_model_name=list(names), model=names[0]), EngineLoad()
        )
        self.app = app
        self.tasks = ("generate",)
        self.frontend: Any = FakeFrontend(self.llm, names)
        self.made_ready = 0
        self.on_ready: Callable[[], Any] | None = None

    async def _make_ready(self) -> None:
        self.made_ready += 1
        if self.on_ready is not None:
            await self.on_ready()
