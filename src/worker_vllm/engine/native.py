"""Native jobs: prompts or messages straight to AsyncLLM, items in the worker's own shape."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from worker_vllm.batching import coalesce
from worker_vllm.constraint_ways import check_constraints
from worker_vllm.engine import application, pacing, pieces
from worker_vllm.engine.frontend import prompt_token_ids
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.outputs import PromptOutputs
from worker_vllm.engine.record import current_demand, current_record
from worker_vllm.errors import InternalError, RequestError, WorkerError
from worker_vllm.job import JobInput
from worker_vllm.settings import WorkerSettings

_COMPLETIONS = "/v1/completions"
# One alternative of one token: id, logprob, rank and text with their names.
_LOGPROB_BYTES = 80
# An item estimated at less than this part of the limit is below it, whatever its text holds.
_SAFETY = 8

# What vLLM's beam search looks at; a job may say more only where it says what beam search does anyway.
_BEAM_PARAMS = ("temperature", "ignore_eos", "include_stop_str_in_output", "skip_special_tokens")
_BEAM_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "top_p": (1.0,),
    "top_k": (0,),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "spaces_between_special_tokens": (True,),
    "min_tokens": (0,),
}


@dataclass(frozen=True)
class _Request:
    """One prompt on its way to the engine."""

    rendered: Any
    max_tokens: int
    adapter: Any
    request_id: str
    outputs: PromptOutputs


class vLLMEngine:
    """Answers native jobs.

    A prompt in the job gives one item, or, streamed, an item whenever the consumer asks and there is news:
    vLLM merges what arrives in between, so a stream costs one item per round trip of the platform.
    """

    def __init__(self, host: EngineHost, settings: WorkerSettings) -> None:
        self._host = host
        self._settings = settings

    def generate(self, job: JobInput, request_id: str) -> AsyncGenerator[dict[str, Any], None]:
        """The job's items, ready for the SDK. The host must be ready, and the caller closes what it gets:
        that ends the job's work in the engine, in whichever phase it is.

        Args:
            job: of kind "prompt" or "messages".
            request_id: the engine's ids of the job's requests begin with it.

        Raises:
            WorkerError: what went wrong. After the first item of a stream, an item that holds the error comes
                before it.
        """
        at_pace = job.stream and pacing.batch_size(self._settings, job.batch) is None
        return self._host.attend(self._items(job, request_id), at_pace=at_pace)

    async def _items(self, job: JobInput, request_id: str) -> AsyncGenerator[dict[str, Any], None]:
        if self._host.follows_every_way:
            check_constraints(job.sampling.structured_outputs, "structured_outputs")
        requests = await self._requests(job, request_id)
        if job.sampling.beam is not None:
            for request in requests:
                yield await self._beam_item(job, request)
            return
        # Made before the first item, so that bad parameters are refused whole.
        streams = [self._outputs(job, request) for request in requests]
        if job.stream:
            async with aclosing(self._streamed(job, requests, streams)) as items:
                async for item in items:
                    yield item
            return
        finals: dict[int, dict[str, Any]] = {}
        due = 0
        async with aclosing(pacing.merge(streams)) as outputs:
            async for index, output in outputs:
                finals[index] = requests[index].outputs.item([output])
                while due in finals:
                    yield finals.pop(due)
                    due += 1

    async def _requests(self, job: JobInput, request_id: str) -> list[_Request]:
        frontend = self._host.frontend
        truncate = job.sampling.truncate_prompt_tokens
        with frontend.translated():
            adapter = await frontend.adapter(job.model, job.messages)
            if job.kind == "messages":
                rendered = [await frontend.render_chat(job.messages, job.chat, truncate)]
            elif job.apply_chat_template:
                rendered = [
                    await frontend.render_chat([{"role": "user", "content": text}], job.chat, truncate)
                    for text in job.prompts
                ]
            else:
                rendered = [await frontend.render_prompt(prompt, truncate) for prompt in job.prompts]
        choices = int((job.sampling.beam or job.sampling.params).get("n", 1))
        return [
            _Request(
                rendered=prompt,
                max_tokens=self._max_tokens(job, prompt),
                adapter=adapter,
                request_id=f"{request_id}-{index}" if len(rendered) > 1 else request_id,
                outputs=PromptOutputs(choices, index if job.many else None),
            )
            for index, prompt in enumerate(rendered)
        ]

    def _max_tokens(self, job: JobInput, rendered: Any) -> int:
        """The job's max_tokens or the worker's default, cut to what the context still holds."""
        params = job.sampling.params
        # A job that wants at least so many tokens wants no fewer at most.
        default = max(self._settings.default_max_tokens, params.get("min_tokens", 0))
        return min(params.get("max_tokens", default), self._host.frontend.room(rendered))

    def _outputs(self, job: JobInput, request: _Request) -> AsyncGenerator[Any, None]:
        params = {name: value for name, value in job.sampling.params.items() if name != "max_tokens"}
        with self._host.frontend.translated():
            sampling = self._host.frontend.sampling_params(
                params, job.sampling.structured_outputs, max_tokens=request.max_tokens, stream=job.stream
            )
        return self._generated(request, sampling)

    async def _generated(self, request: _Request, sampling: Any) -> AsyncGenerator[Any, None]:
        with self._host.frontend.translated():
            outputs = self._host.llm.generate(
                request.rendered, sampling, request.request_id, lora_request=request.adapter
            )
            async with aclosing(outputs):
                async for output in outputs:
                    if any(part.finish_reason == "error" for part in output.outputs):
                        raise InternalError("the engine failed on this request")
                    yield output

    async def _streamed(
        self, job: JobInput, requests: list[_Request], streams: list[AsyncGenerator[Any, None]]
    ) -> AsyncGenerator[dict[str, Any], None]:
        batches = [self._batched(job, stream) for stream in streams]
        started: PromptOutputs | None = None
        try:
            async with aclosing(pacing.merge(batches)) as merged:
                async for index, outputs in merged:
                    started = requests[index].outputs
                    item = started.item(outputs)
                    if sum(map(_json_bytes, outputs)) < self._settings.max_chunk_bytes // _SAFETY:
                        yield item
                        continue
                    for piece in pieces.split(item, self._settings.max_chunk_bytes):
                        yield piece
        except WorkerError as error:
            if started is not None:
                yield started.error_item(error.to_error())
            raise

    async def _batched(
        self, job: JobInput, stream: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[list[Any], None]:
        size = pacing.batch_size(self._settings, job.batch)
        if size is None:
            # One at a time and only when asked: what comes meanwhile is merged by vLLM.
            demand = current_demand()
            async with aclosing(stream):
                async for output in stream:
                    demand.served()
                    yield [output]
                    demand.want()
            return
        batches = coalesce(
            stream, size=size, weigh=_token_count, cost=_json_bytes, max_bytes=self._settings.max_chunk_bytes
        )
        async with aclosing(batches):
            async for batch in batches:
                yield batch

    async def _beam_item(self, job: JobInput, request: _Request) -> dict[str, Any]:
        """Beam search, which AsyncLLM itself has not: through vLLM's completions route, by token ids."""
        assert job.sampling.beam is not None
        if request.rendered.get("type", "token") != "token":
            raise RequestError("use_beam_search needs a prompt of text alone", param="use_beam_search")
        body = {
            "model": job.model or self._host.served_model_names[0],
            "prompt": list(prompt_token_ids(request.rendered)),
            "max_tokens": request.max_tokens,
            "use_beam_search": True,
            **job.sampling.beam,
            **_beam_params(job),
        }
        answer = await application.ask(
            self._host, path=_COMPLETIONS, body=body, request_id=request.request_id
        )
        if record := current_record.get():
            record.take_usage(answer["usage"])
        return request.outputs.completion_item(answer)


def _beam_params(job: JobInput) -> dict[str, Any]:
    wanted = job.sampling.params
    for name, value in wanted.items():
        if name in (*_BEAM_PARAMS, "max_tokens", "seed") or value in _BEAM_NEUTRAL.get(name, ()):
            continue
        raise RequestError(f"{name} has no effect on beam search", param=name)
    if job.sampling.structured_outputs is not None:
        raise RequestError("structured outputs do not work with beam search", param="structured_outputs")
    return {name: wanted[name] for name in _BEAM_PARAMS if name in wanted}


def _token_count(output: Any) -> int:
    return sum(len(part.token_ids) for part in output.outputs)


def _json_bytes(output: Any) -> int:
    """About what the output takes as JSON."""
    prompt = _LOGPROB_BYTES * sum(len(position or ()) for position in output.prompt_logprobs or ())
    return prompt + sum(
        len(part.text.encode("utf-8", "replace"))
        + _LOGPROB_BYTES * sum(len(position or ()) for position in part.logprobs or ())
        for part in output.outputs
    )
