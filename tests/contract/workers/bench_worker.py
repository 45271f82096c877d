"""A worker for the benchmark's own tests: the real SDK around answers that cost nothing. Run it as a program.

    python bench_worker.py [seconds per chunk]

One token a chunk, as many chunks as the request's max_tokens.
"""

import asyncio
import json
import sys
from collections.abc import AsyncGenerator
from typing import Any

SECONDS_PER_CHUNK = float(sys.argv[1]) if len(sys.argv) > 1 else 0.0


async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
    """An OpenAI stream or answer for a route, the native shape for anything else."""
    given = job["input"]
    body = given.get("openai_input")
    native = body is None
    request = given["sampling_params"] if native else body
    tokens = int(request["max_tokens"])
    if not (given["stream"] if native else body["stream"]):
        await asyncio.sleep(SECONDS_PER_CHUNK * tokens)
        yield _native("word " * tokens, tokens) if native else _plain(tokens)
        return
    for number in range(1, tokens + 1):
        await asyncio.sleep(SECONDS_PER_CHUNK)
        yield _native("word ", number) if native else _event("word ")
    if not native:
        usage = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": tokens}}
        yield f"data: {json.dumps(usage)}\n\ndata: [DONE]\n\n"


def _native(text: str, tokens: int) -> dict[str, Any]:
    return {"choices": [{"tokens": [text]}], "usage": {"input": 1, "output": tokens}}


def _plain(tokens: int) -> dict[str, Any]:
    usage = {"prompt_tokens": 1, "completion_tokens": tokens}
    return {"choices": [{"index": 0, "text": "word " * tokens}], "usage": usage}


def _event(text: str) -> str:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None, "stop_reason": None}
    event = {
        "id": "cmpl-0123456789abcdef",
        "object": "text_completion",
        "created": 1764450000,
        "model": "bench",
        "choices": [choice],
        "usage": None,
    }
    return f"data: {json.dumps(event)}\n\n"


if __name__ == "__main__":
    print("phase: fake engine 0.1 s", flush=True)

    import runpod

    runpod.serverless.start(
        {
            "handler": handler,
            "concurrency_modifier": lambda _: 512,
            "return_aggregate_stream": True,
        }
    )
