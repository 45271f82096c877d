"""The two demonstration requests of `worker-vllm local --demo`, made with the clients that users have.

Run as a script with the endpoint's address as its argument; it imports the clients at once and sends nothing
until a line comes on its standard input. How a user calls the endpoint by hand is here too.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterable
from typing import Any

QUESTION = "What is the capital of France?"
MAX_TOKENS = 32
GO = b"go\n"
KEY_VARIABLE = "WORKER_VLLM_DEMO_KEY"


class DemoError(Exception):
    """A demonstration request that brought no answer; one line for the user."""


def main(argv: list[str]) -> int:
    """Send both requests to the endpoint at argv[1] and print the answers; 1 when one of them fails."""
    url, key = argv[1], os.environ[KEY_VARIABLE]
    base, _, endpoint = url.rpartition("/")
    os.environ["RUNPOD_ENDPOINT_BASE_URL"] = base  # the runpod client reads it once, at its import
    import openai
    import runpod

    if not sys.stdin.readline():
        return 1
    try:
        _chat(openai.OpenAI(base_url=f"{url}/openai/v1", api_key=key, max_retries=0))
        _native(runpod.Endpoint(endpoint, api_key=key), endpoint)
    except (DemoError, openai.OpenAIError, OSError) as error:
        print(f"\nthe demonstration failed: {error}", file=sys.stderr, flush=True)
        return 1
    return 0


def how_to_call(url: str, api_key: str | None) -> str:
    """Three ways to call the endpoint at `url`, ready to be copied."""
    key = api_key or "local"
    base, _, endpoint = url.rpartition("/")
    question = json.dumps({"messages": [{"role": "user", "content": QUESTION}], "max_tokens": MAX_TOKENS})
    job = json.dumps({"input": _job_input()})
    return f"""
Call it with curl:
  curl -N {url}/openai/v1/chat/completions \\
    -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{question[:-1]}, "stream": true}}'
  curl {url}/runsync -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' \\
    -d '{job}'

with the OpenAI SDK:
  import openai
  client = openai.OpenAI(base_url="{url}/openai/v1", api_key="{key}")
  model = client.models.list().data[0].id
  chat = client.chat.completions.create(model=model, messages=[{{"role": "user", "content": "{QUESTION}"}}])
  print(chat.choices[0].message.content)

with the runpod client (export RUNPOD_ENDPOINT_BASE_URL={base} first):
  import runpod
  endpoint = runpod.Endpoint("{endpoint}", api_key="{key}")
  print(endpoint.run_sync({{"input": {{"messages": [{{"role": "user", "content": "{QUESTION}"}}]}}}}))
"""


def _job_input() -> dict[str, Any]:
    return {
        "prompt": QUESTION,
        "apply_chat_template": True,
        "sampling_params": {"temperature": 0, "max_tokens": MAX_TOKENS},
        "stream": True,
    }


def _chat(client: Any) -> None:
    """One streamed chat through the OpenAI route."""
    model = client.models.list().data[0].id
    _heading(f"OpenAI SDK, streamed chat with {model}")
    started = time.monotonic()
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": QUESTION}],
        temperature=0,
        max_tokens=MAX_TOKENS,
        stream=True,
    )
    _print_as_it_comes((chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices), started)


def _native(endpoint: Any, endpoint_id: str) -> None:
    """One native job through RunPod's queue API, its output streamed."""
    _heading("runpod client, native job (the client asks for output once a second)")
    started = time.monotonic()
    job = endpoint.run({"input": _job_input()})
    try:
        _print_as_it_comes((text_of(output) for output in job.stream()), started)
    except DemoError:
        # The client has no word for a job's error; the platform's own answer has.
        state = endpoint.rp_client.get(f"{endpoint_id}/status/{job.job_id}")
        raise DemoError(f"the job ended {state['status']}: {state.get('error', 'no output')}") from None


def text_of(output: Any) -> str:
    """The text in one output of a job: the native shape's tokens, or whatever else it is."""
    if isinstance(output, str):
        return output
    if isinstance(output, dict) and isinstance(output.get("choices"), list):
        return "".join(
            "".join(choice.get("tokens") or [choice.get("text") or ""]) for choice in output["choices"]
        )
    return json.dumps(output, ensure_ascii=False)


def _heading(text: str) -> None:
    print(f"\n{text}\n> {QUESTION}\n< ", end="", flush=True)


def _print_as_it_comes(texts: Iterable[str], started: float) -> None:
    """Print texts as they arrive, then how long the first and the last took.

    Raises:
        DemoError: there was no text at all.
    """
    first = None
    for text in texts:
        if text and first is None:
            first = time.monotonic() - started
        print(text, end="", flush=True)
    if first is None:
        raise DemoError("no text came")
    print(f"\n  first token after {first:.2f} s, all after {time.monotonic() - started:.2f} s", flush=True)


if __name__ == "__main__":
    logging.disable(logging.INFO)  # importing runpod turns every library's INFO on
    sys.exit(main(sys.argv))
