"""LoRA adapters by name, in native jobs and on the OpenAI routes."""

from __future__ import annotations

from tests.vllm.driving import run, text_of
from worker_vllm.engine.lifecycle import EngineHost

GREEDY = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}


async def test_the_model_field_chooses_the_adapter(tiny: EngineHost) -> None:
    job = {"prompt": "hello there", "sampling_params": GREEDY}
    (base,) = await run(tiny, job)
    (shifted,) = await run(tiny, {**job, "model": "shifted"})
    assert text_of([base]) != text_of([shifted])
    body = {"prompt": "hello there", "model": "shifted", **GREEDY}
    (answer,) = await run(tiny, {"openai_route": "/v1/completions", "openai_input": body})
    assert answer["model"] == "shifted"
    assert answer["choices"][0]["text"] == text_of([shifted])


async def test_both_answer_side_by_side(tiny: EngineHost) -> None:
    job = {"prompt": ["a", "b"], "sampling_params": GREEDY, "stream": True}
    alone = await run(tiny, {**job, "model": "shifted"})
    assert {item["prompt_index"] for item in alone} == {0, 1}
    (base,) = await run(tiny, {"prompt": "a", "sampling_params": GREEDY})
    assert text_of([item for item in alone if item["prompt_index"] == 0]) != text_of([base])
