"""The real engine's tokens come out the same, however many of its steps are handled together."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.vllm.driving import run
from worker_vllm import vllm_outputs
from worker_vllm.engine.lifecycle import EngineHost

GREEDY = {"max_tokens": 48, "temperature": 0.0, "ignore_eos": True}
JOBS: dict[str, dict[str, Any]] = {
    "plain": {"prompt": "one", "sampling_params": GREEDY},
    "streamed": {"prompt": "two", "stream": True, "sampling_params": GREEDY},
    "logprobs": {"prompt": "three", "stream": True, "sampling_params": {**GREEDY, "logprobs": 1}},
    "choices": {"prompt": "four", "sampling_params": {**GREEDY, "temperature": 1.0, "n": 2, "seed": 1}},
    "events": {
        "openai_route": "/v1/completions",
        "openai_input": {
            "prompt": "five",
            "stream": True,
            "stream_options": {"include_usage": True},
            **GREEDY,
        },
    },
}


@pytest.fixture
def steps_at_once(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many messages of the engine's were handled together, each time."""
    seen: list[int] = []
    gather = vllm_outputs.gather

    def note(messages: Any, alone: Any) -> None:
        seen.append(len(messages))
        gather(messages, alone)

    monkeypatch.setattr(vllm_outputs, "gather", note)
    return seen


async def _with_a_busy_loop(work: Any) -> Any:
    """What comes of `work` in a loop that others hold for a tenth of a second at a time."""
    result = asyncio.ensure_future(work)
    while not result.done():
        await asyncio.sleep(0.005)
        time.sleep(0.1)  # noqa: ASYNC251 - on purpose
    return await result


def _texts(chunks: list[Any]) -> list[str]:
    """A job's answers, however its stream was cut; of server-sent events the usage as well."""
    if isinstance(chunks[0], str):
        events = "".join(chunks)
        usage = events.rpartition('"usage":')[2]
        return ["".join(part.split('"', 1)[0] for part in events.split('"text":"')[1:]), usage]
    texts = ["" for _ in chunks[0]["choices"]]
    for chunk in chunks:
        for index, choice in enumerate(chunk["choices"]):
            texts[index] += "".join(choice["tokens"])
    return texts


@pytest.mark.parametrize("name", JOBS)
async def test_steps_that_are_handled_together_make_the_same_answer(
    name: str, tiny: EngineHost, steps_at_once: list[int]
) -> None:
    expected = _texts(await run(tiny, JOBS[name], "alone"))
    steps_at_once.clear()
    got = _texts(await _with_a_busy_loop(run(tiny, JOBS[name], "together")))
    assert max(steps_at_once) > 1
    assert got == expected


async def test_an_answer_ends_at_its_stop_text_however_busy_the_loop_is(
    tiny: EngineHost, steps_at_once: list[int]
) -> None:
    text = _texts(await run(tiny, JOBS["plain"]))[0]
    middle = len(text) // 2
    job = {"prompt": "one", "sampling_params": {**GREEDY, "stop": [text[middle : middle + 3]]}}
    expected = await run(tiny, job, "alone")
    got = await _with_a_busy_loop(run(tiny, job, "together"))
    assert max(steps_at_once) > 1
    assert got == expected
