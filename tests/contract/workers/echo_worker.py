"""A worker with the real SDK and no engine: an async-generator handler that does what the job's input says.

Input keys, all optional: `yields` (list: the outputs), `pause_s` (between them), `error` (text: ends the
job so), `openai_route`/`openai_input` (a small imitation of a chat), `exit` (int: the process ends at once,
as by a crash), `progress` (any: sent first, as a progress update), `mark` (a file that gets a line "started",
and "stopped" when the handler is cancelled).
"""

import asyncio
import json
import os
import sys
from pathlib import Path


def note(job_input, text):
    if path := job_input.get("mark"):
        with Path(path).open("a") as file:
            file.write(f"{text}\n")


def sse(data):
    return f"data: {json.dumps(data, ensure_ascii=False) if not isinstance(data, str) else data}\n\n"


async def chat(body):
    words = ["Par", "is", " 🗼", " 巴黎"]
    base = {"id": "chatcmpl-1", "created": 1, "model": body.get("model") or "echo"}
    failure = {"error": json.dumps({"message": "it broke", "code": 500})}
    if not body.get("stream"):
        if body.get("fail"):
            yield failure
            return
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        yield {**base, "object": "chat.completion", "choices": [choice]}
        return
    for word in words:
        choice = {"index": 0, "delta": {"content": word}, "finish_reason": None}
        yield sse({**base, "object": "chat.completion.chunk", "choices": [choice]})
        await asyncio.sleep(float(body.get("pause_s", 0)))
        if body.get("fail"):
            yield failure
            return
    yield sse("[DONE]")


async def handler(job):
    job_input = job["input"]
    note(job_input, "started")
    try:
        if job_input.get("openai_route") == "/v1/models":
            yield {
                "object": "list",
                "data": [{"id": "echo", "object": "model", "created": 1, "owned_by": "me"}],
            }
            return
        if "openai_route" in job_input:
            async for chunk in chat(job_input["openai_input"] or {}):
                yield chunk
            return
        if "exit" in job_input:
            print("worker summary: told to crash", flush=True)
            os._exit(job_input["exit"])
        if job_input.get("progress"):
            import runpod

            runpod.serverless.progress_update(job, job_input["progress"])
            await asyncio.sleep(0.3)  # it is sent by a thread, and nothing says when
        for output in job_input.get("yields", []):
            yield output
            await asyncio.sleep(job_input.get("pause_s", 0))
        if job_input.get("prompt"):
            yield {"choices": [{"tokens": ["Paris", "."]}], "usage": {"input": 1, "output": 2}}
        if job_input.get("error"):
            yield {"error": job_input["error"]}
    except asyncio.CancelledError:
        note(job_input, "stopped")
        raise


if __name__ == "__main__":
    if os.environ.get("ECHO_FAILS"):
        print("noise before the end", file=sys.stderr)
        print("echo worker cannot start (exit code 3): told to fail", file=sys.stderr)
        sys.exit(3)
    import runpod

    print("phase: pretend …", flush=True)
    runpod.serverless.start(
        {
            "handler": handler,
            "concurrency_modifier": lambda _: int(os.environ.get("ECHO_CONCURRENCY", "4")),
            "return_aggregate_stream": True,
        }
    )
