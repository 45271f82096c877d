"""The program of the raw engine: AsyncLLM in one Python loop, with nothing around it.

It is what every layer of a worker is measured against. The usage context is the API server's, as in a
worker, and streams are read as deltas; a plain answer comes as its final output alone. It speaks the lines
of `bench.client_process`; the first line in is `{"engine": {…}}` and is answered with `{"ready": true}`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any, TextIO

from worker_vllm.bench.client_process import new_loop, serve
from worker_vllm.bench.load import Offer, pace
from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.watch import Watch
from worker_vllm.bench.workload import Workload


class RawEngine:
    """One AsyncLLM and the runs made with it."""

    def __init__(self, engine_arguments: dict[str, Any]) -> None:
        from worker_vllm import vllm_compat

        self._sampling_params = vllm_compat.load("SamplingParams")
        self._output_kind = vllm_compat.load("RequestOutputKind")
        self._llm = vllm_compat.load("AsyncLLM").from_engine_args(
            vllm_compat.load("AsyncEngineArgs")(**engine_arguments),
            usage_context=vllm_compat.load("UsageContext").OPENAI_API_SERVER,
        )
        self._requests = 0

    def close(self) -> None:
        """End the engine's processes."""
        self._llm.shutdown()

    async def share(
        self, message: dict[str, Any], workload: Workload, offers: list[Offer]
    ) -> list[RequestTimes]:
        """One run: the same as a client process does over HTTP."""

        async def send(offer: Offer) -> RequestTimes:
            return await self._send(workload, offer)

        return await pace(offers, send, start=message["start"], concurrency=message["concurrency"])

    async def _send(self, workload: Workload, offer: Offer) -> RequestTimes:
        watch = Watch(offer.index)
        kind = self._output_kind.DELTA if workload.streamed else self._output_kind.FINAL_ONLY
        sampling = self._sampling_params(
            max_tokens=workload.max_tokens,
            temperature=workload.temperature,
            ignore_eos=True,
            output_kind=kind,
        )
        self._requests += 1
        tokens = 0
        async for output in self._llm.generate(offer.prompt, sampling, f"bench-{self._requests}"):
            tokens += len(output.outputs[0].token_ids)
            if workload.streamed:
                watch.text()
        if workload.streamed:
            watch.tokens = tokens
        else:
            watch.end(tokens)
        return watch.result()


def _own_answers() -> TextIO:
    """A file of our own for the answers; whatever vLLM and its processes print goes to standard error
    instead."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return answers


def main() -> None:
    """Build the engine that the first line asks for, then answer runs until the input ends."""
    answers = _own_answers()
    engine = RawEngine(json.loads(sys.stdin.readline())["engine"])
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            print(json.dumps({"ready": True}), file=answers, flush=True)
            serve(runner, engine.share, sys.stdin, answers)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
