"""Native jobs against a real engine: every input shape, streamed and not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.vllm.driving import run, run_recorded, stream, text_of
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.errors import RequestError

GREEDY = {"temperature": 0, "max_tokens": 16}
QUESTION = "What is the capital of France?"
SHAPES: dict[str, dict[str, Any]] = {
    "prompt": {"prompt": "The capital of France is"},
    "token ids": {"prompt": [504, 3575, 282, 4649, 314]},
    "template": {"prompt": QUESTION, "apply_chat_template": True},
    "messages": {"messages": [{"role": "user", "content": QUESTION}]},
    "messages in parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]},
    "messages as prompt": {"prompt": [{"role": "user", "content": QUESTION}]},
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_stream_joins_to_the_plain_answer(demo: EngineHost, shape: str) -> None:
    job = {**SHAPES[shape], "sampling_params": GREEDY}
    (plain,) = await run(demo, job)
    items = await run(demo, {**job, "stream": True})
    assert text_of(items) == text_of([plain])
    assert "Paris" in text_of(items)
    assert items[-1]["usage"] == plain["usage"]
    assert items[-1]["choices"][0]["finish_reason"] == plain["choices"][0]["finish_reason"]


@pytest.mark.parametrize("text", ["🦊👩‍👧🇫🇷", "東京 天気", "žluť kůň €"])
async def test_no_character_is_cut_in_a_stream(demo: EngineHost, text: str) -> None:
    # a base-model prompt that the model continues by repeating it
    job = {"prompt": f"{text}\n{text}\n{text}\n{text}\n", "sampling_params": {**GREEDY, "max_tokens": 24}}
    (plain,) = await run(demo, job)
    items = await run(demo, {**job, "stream": True})
    assert text in text_of([plain])
    assert text_of(items) == text_of([plain])


async def test_usage_counts_token_ids(tiny: EngineHost) -> None:
    job = {"prompt": [5, 6, 7], "sampling_params": {"temperature": 0, "max_tokens": 9, "ignore_eos": True}}
    (plain,), record = await run_recorded(tiny, job)
    assert plain["usage"] == {"input": 3, "output": 9}
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (3, 9, "length")
    assert record.first_token_at is not None and record.received_at <= record.first_token_at
    items, record = await run_recorded(tiny, {**job, "stream": True})
    assert items[-1]["usage"] == {"input": 3, "output": 9}
    outputs = [item["usage"]["output"] for item in items]
    assert outputs == sorted(outputs)
    assert (record.prompt_tokens, record.output_tokens, record.finish_reason) == (3, 9, "length")
    assert record.unfinished == set()


async def test_max_tokens_defaults_to_the_setting(tiny: EngineHost) -> None:
    job = {"prompt": "a", "sampling_params": {"ignore_eos": True}}
    (plain,) = await run(tiny, job)
    assert plain["usage"]["output"] == 100
    (plain,) = await run(tiny, job, default_max_tokens=7)
    assert plain["usage"]["output"] == 7
    (plain,) = await run(tiny, {**job, "sampling_params": {"ignore_eos": True, "min_tokens": 120}})
    assert plain["usage"]["output"] == 120


async def test_max_tokens_is_cut_to_what_the_context_holds(tiny: EngineHost) -> None:
    params = {"max_tokens": 5000, "ignore_eos": True}
    (plain,) = await run(tiny, {"prompt": [5] * 500, "sampling_params": params})
    assert plain["usage"] == {"input": 500, "output": 12}
    assert plain["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_two_answers_have_a_choice_each(tiny: EngineHost, wants_stream: bool) -> None:
    params = {"n": 2, "max_tokens": 6, "ignore_eos": True, "temperature": 1.0, "seed": 1}
    items = await run(tiny, {"prompt": [5, 6], "sampling_params": params, "stream": wants_stream})
    assert all(len(item["choices"]) == 2 for item in items)
    assert items[-1]["usage"] == {"input": 2, "output": 12}
    assert text_of(items, 0) and text_of(items, 1)
    assert wants_stream or len(items) == 1


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_list_of_prompts_gives_numbered_items(demo: EngineHost, wants_stream: bool) -> None:
    prompts = ["The capital of France is", "One, two, three, four,"]
    items = await run(demo, {"prompt": prompts, "sampling_params": GREEDY, "stream": wants_stream})
    for index, prompt in enumerate(prompts):
        (alone,) = await run(demo, {"prompt": prompt, "sampling_params": GREEDY})
        mine = [item for item in items if item["prompt_index"] == index]
        assert text_of(mine) == text_of([alone])
        assert mine[-1]["usage"] == alone["usage"]
    if not wants_stream:
        assert [item["prompt_index"] for item in items] == [0, 1]


async def test_a_list_of_one_prompt_is_numbered_too(tiny: EngineHost) -> None:
    (item,) = await run(tiny, {"prompt": ["a"], "sampling_params": {"max_tokens": 2}})
    assert item["prompt_index"] == 0


async def test_chosen_batch_sizes_are_counts_of_tokens(tiny: EngineHost) -> None:
    params = {"max_tokens": 20, "ignore_eos": True}
    job = {"prompt": "a", "stream": True, "sampling_params": params, "max_batch_size": 8, "min_batch_size": 2}
    items = await run(tiny, {**job, "batch_size_growth_factor": 2})
    totals = [item["usage"]["output"] for item in items]
    assert totals == [2, 6, 14, 20]
    items = await run(tiny, {**job, "max_batch_size": 1, "min_batch_size": 1})
    assert len(items) == 20


async def test_logprobs_come_as_json(demo: EngineHost) -> None:
    params = {"max_tokens": 3, "ignore_eos": True, "logprobs": 2, "prompt_logprobs": 1}
    (plain,) = await run(demo, {"prompt": [5, 6, 7], "sampling_params": params})
    positions = plain["choices"][0]["logprobs"]
    assert len(positions) == 3
    assert all(len(position) >= 2 and all(key.isdigit() for key in position) for position in positions)
    assert plain["prompt_logprobs"][0] is None and len(plain["prompt_logprobs"]) == 3
    items = await run(demo, {"prompt": [5, 6, 7], "sampling_params": params, "stream": True})
    assert sum(len(item["choices"][0].get("logprobs", [])) for item in items) == 3
    assert sum("prompt_logprobs" in item for item in items) == 1


async def test_structured_outputs_constrain_the_answer(demo: EngineHost) -> None:
    params = {"structured_outputs": {"choice": ["blue", "green"]}, "temperature": 0}
    (plain,) = await run(demo, {"prompt": "The sky is", "sampling_params": params})
    assert text_of([plain]) in ("blue", "green")


async def test_stop_strings_end_the_answer(demo: EngineHost) -> None:
    params = {**GREEDY, "stop": ["Paris"]}
    (plain,) = await run(demo, {"prompt": "The capital of France is", "sampling_params": params})
    assert text_of([plain]).strip() == ""
    assert plain["choices"][0]["finish_reason"] == "stop"
    assert plain["choices"][0]["stop_reason"] == "Paris"


async def test_prompts_can_be_truncated(tiny: EngineHost) -> None:
    params = {"max_tokens": 2, "truncate_prompt_tokens": 4}
    (plain,) = await run(tiny, {"prompt": [9] * 600, "sampling_params": params})
    assert plain["usage"]["input"] == 4


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_beam_search_gives_its_width_of_choices(demo: EngineHost, wants_stream: bool) -> None:
    params = {"use_beam_search": True, "n": 3, "max_tokens": 6, "temperature": 0}
    job = {"prompt": "The capital of France is", "sampling_params": params, "stream": wants_stream}
    (item,), record = await run_recorded(demo, job)
    assert len(item["choices"]) == 3
    assert "Paris" in text_of([item])
    assert item["usage"]["input"] == record.prompt_tokens == 5
    assert item["usage"]["output"] == record.output_tokens


@pytest.mark.parametrize("name", ["tiny", "second-name", None])
async def test_every_served_name_works(tiny: EngineHost, name: str | None) -> None:
    (item,) = await run(tiny, {"prompt": "a", "model": name, "sampling_params": {"max_tokens": 1}})
    assert item["usage"]["output"] == 1


MALFORMED: dict[str, tuple[dict[str, Any], int, str | None]] = {
    "unknown model": ({"prompt": "a", "model": "nobody"}, 404, "model"),
    "too long": ({"prompt": [5] * 513}, 400, None),
    "no room": ({"prompt": [5] * 512}, 400, None),
    "token out of range": ({"prompt": [2**31 - 1]}, 400, None),
    "empty prompt": ({"prompt": ""}, 400, None),
    "contradiction": ({"prompt": "a", "sampling_params": {"min_tokens": 9, "max_tokens": 3}}, 400, None),
    "bad grammar": ({"prompt": "a", "sampling_params": {"guided_grammar": "%%%"}}, 400, None),
    "bad regex": ({"prompt": "a", "sampling_params": {"guided_regex": "((("}}, 400, None),
    "bias out of range": ({"prompt": "a", "sampling_params": {"logit_bias": {"99999999": 1}}}, 400, None),
    "too many logprobs": ({"prompt": "a", "sampling_params": {"logprobs": 999}}, 400, None),
    "unknown role": ({"messages": [{"role": "user", "content": [{"type": "nothing"}]}]}, 400, None),
    "beam with top_p": (
        {"prompt": "a", "sampling_params": {"use_beam_search": True, "top_p": 0.5}},
        400,
        "top_p",
    ),
}


@pytest.mark.parametrize("wants_stream", [False, True])
@pytest.mark.parametrize("case", MALFORMED)
async def test_a_malformed_job_fails_alone(tiny: EngineHost, case: str, wants_stream: bool) -> None:
    job, code, param = MALFORMED[case]
    with pytest.raises(RequestError) as caught:
        await run(tiny, {**job, "stream": wants_stream})
    error = caught.value.to_error()
    assert error["code"] == code and error["message"]
    assert param is None or error["param"] == param
    assert "Traceback" not in error["message"] and "site-packages" not in error["message"]
    (item,) = await run(tiny, {"prompt": "a", "sampling_params": {"max_tokens": 1}})
    assert item["usage"]["output"] == 1


async def test_64_jobs_run_at_once(tiny: EngineHost) -> None:
    jobs = [
        {
            "prompt": [5 + index, 6],
            "sampling_params": {"max_tokens": 16, "temperature": 0, "ignore_eos": True},
            "stream": index % 2 == 0,
        }
        for index in range(64)
    ]
    answers = await asyncio.gather(*(run(tiny, job, f"job-{index}") for index, job in enumerate(jobs)))
    for items in answers:
        assert items[-1]["usage"] == {"input": 2, "output": 16}
    assert tiny.unfinished_requests == 0


async def test_a_slow_consumer_gets_merged_items_not_one_per_token(tiny: EngineHost) -> None:
    job = {"prompt": "a", "sampling_params": {"max_tokens": 64, "ignore_eos": True}, "stream": True}
    items = []
    async for item in stream(tiny, job):
        items.append(item)
        await asyncio.sleep(0.1)
    assert items[0]["usage"]["output"] == 1
    assert items[-1]["usage"]["output"] == 64
    assert len(items) < 40


@pytest.mark.parametrize("pause", [0, 0.02, 0.3])
async def test_a_stream_holds_every_token_however_slowly_it_is_read(demo: EngineHost, pause: float) -> None:
    params = {"temperature": 0.5, "seed": 7, "max_tokens": 120, "ignore_eos": True, "n": 2, "logprobs": 0}
    job = {"prompt": "Once upon a time, 東京 🦊,", "sampling_params": params}
    (plain,) = await run(demo, job)
    tokens = [0, 0]
    texts = ["", ""]
    async for item in stream(demo, {**job, "stream": True}):
        for index, choice in enumerate(item["choices"]):
            texts[index] += "".join(choice["tokens"])
            tokens[index] += len(choice.get("logprobs") or ())
        await asyncio.sleep(pause)
    assert texts == ["".join(choice["tokens"]) for choice in plain["choices"]]
    assert tokens == [120, 120]
