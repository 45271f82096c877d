from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from tests.fakes import STALL, FakeEngineDeath, FakeHost, FakeLLM, Gate
from worker_vllm.engine.native import vLLMEngine
from worker_vllm.errors import ApplicationError, EngineDeadError, InternalError, RequestError, WorkerError
from worker_vllm.job import JobInput
from worker_vllm.settings import WorkerSettings


def items_of(host: FakeHost, job: dict[str, Any], **settings: Any) -> Any:
    return vLLMEngine(host, WorkerSettings(**settings)).generate(JobInput.parse(job), "job")


async def run(host: FakeHost, job: dict[str, Any], **settings: Any) -> list[Any]:
    return [item async for item in items_of(host, job, **settings)]


def texts(items: list[Any]) -> list[list[str]]:
    return [item["choices"][0]["tokens"] for item in items]


async def test_a_plain_answer_is_one_item() -> None:
    assert await run(FakeHost(), {"prompt": "a b"}) == [
        {
            "choices": [{"tokens": ["Hello!"], "finish_reason": "stop"}],
            "usage": {"input": 2, "output": 3},
        }
    ]


async def test_a_stream_gives_an_item_per_update() -> None:
    items = await run(FakeHost(), {"prompt": "a", "stream": True})
    assert texts(items) == [["Hel"], ["lo"], ["!"]]
    assert [item["usage"]["output"] for item in items] == [1, 2, 3]


async def test_the_engine_is_read_no_faster_than_the_consumer_asks() -> None:
    host = FakeHost()
    gate = Gate()
    host.llm.enqueue("a", gate, "b")
    items = items_of(host, {"prompt": "a", "stream": True})
    assert texts([await anext(items)]) == [["a"]]
    gate.set()
    assert texts([item async for item in items]) == [["b"]]


async def test_batch_sizes_of_the_job_win_over_the_settings() -> None:
    host = FakeHost()
    host.llm.enqueue(*"abcdefgh")
    job = {"prompt": "a", "stream": True, "max_batch_size": 4, "min_batch_size": 2}
    items = await run(host, {**job, "batch_size_growth_factor": 2}, default_batch_size=1)
    assert texts(items) == [["a", "b"], ["c", "d", "e", "f"], ["g", "h"]]


async def test_messages_go_through_the_chat_rendering() -> None:
    host = FakeHost()
    messages = [{"role": "user", "content": "hi"}]
    job = {"messages": messages, "add_generation_prompt": True}
    await run(host, job)
    assert host.frontend.rendered == [(messages, {"add_generation_prompt": True})]


async def test_a_templated_prompt_is_one_user_message() -> None:
    host = FakeHost()
    await run(host, {"prompt": ["a", "b"], "apply_chat_template": True})
    assert [message for (message,), _ in host.frontend.rendered] == [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
    ]


async def test_prompts_of_a_list_answer_in_order_whoever_is_first() -> None:
    host = FakeHost()
    gate = Gate()
    host.llm.enqueue(gate, "first")
    host.llm.enqueue("second")
    items = items_of(host, {"prompt": ["a", "b"]})
    asyncio.get_running_loop().call_later(0.02, gate.set)
    found = [item async for item in items]
    assert [(item["prompt_index"], *texts([item])) for item in found] == [(0, ["first"]), (1, ["second"])]
    assert sorted(host.llm.started) == ["job-0", "job-1"]


async def test_streams_of_several_prompts_are_interleaved() -> None:
    host = FakeHost()
    gate = Gate()
    host.llm.enqueue("a", gate, "b")
    host.llm.enqueue("c", "d")
    items = items_of(host, {"prompt": ["a", "b"], "stream": True})
    asyncio.get_running_loop().call_later(0.02, gate.set)
    found = [(item["prompt_index"], item["choices"][0]["tokens"][0]) async for item in items]
    assert found[-1] == (0, "b")
    assert sorted(found) == [(0, "a"), (0, "b"), (1, "c"), (1, "d")]


async def test_two_answers_have_a_choice_each() -> None:
    host = FakeHost()
    host.llm.enqueue(("a", "b"), (None, "c"), ("d", None))
    (item,) = await run(host, {"prompt": "a", "sampling_params": {"n": 2}})
    assert [choice["tokens"] for choice in item["choices"]] == [["ad"], ["bc"]]
    assert item["usage"]["output"] == 4


@pytest.mark.parametrize(
    ("params", "prompt", "expected"),
    [
        ({}, "a", 20),
        ({"max_tokens": 7}, "a", 7),
        ({"max_tokens": 7000}, "a b c d", 60),
        ({"min_tokens": 30}, "a", 30),
    ],
)
async def test_max_tokens(params: dict[str, Any], prompt: str, expected: int) -> None:
    host = FakeHost()
    await run(host, {"prompt": prompt, "sampling_params": params}, default_max_tokens=20)
    given = host.llm.params["job"]
    assert given.max_tokens == expected
    assert "max_tokens" not in given.given


async def test_the_model_may_be_a_served_name_or_an_adapter() -> None:
    host = FakeHost()
    host.frontend.adapters["lora"] = "its request"
    for name, adapter in (("alias", None), ("lora", "its request")):
        await run(host, {"prompt": "a", "model": name})
        assert host.llm.adapters["job"] == adapter
    with pytest.raises(ApplicationError) as caught:
        await run(host, {"prompt": "a", "model": "nobody"})
    assert caught.value.to_error()["code"] == 404


async def test_a_prompt_that_does_not_fit_never_reaches_the_engine() -> None:
    host = FakeHost()
    with pytest.raises(RequestError):
        await run(host, {"prompt": [1] * 64})
    assert host.llm.started == []


FAILURES = [
    (RuntimeError("secret"), InternalError),
    (FakeEngineDeath(), EngineDeadError),
    (ValueError("bad grammar"), RequestError),
]


@pytest.mark.parametrize(("failure", "expected"), FAILURES)
@pytest.mark.parametrize("wants_stream", [False, True])
async def test_a_failure_before_the_first_token_is_only_raised(
    failure: Exception, expected: type[WorkerError], wants_stream: bool
) -> None:
    host = FakeHost()
    host.llm.enqueue(failure)
    with pytest.raises(expected) as caught:
        await run(host, {"prompt": "a", "stream": wants_stream})
    assert caught.value.__cause__ is failure
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(("failure", "expected"), FAILURES)
async def test_a_failure_in_mid_stream_is_the_last_item_and_raised(
    failure: Exception, expected: type[WorkerError]
) -> None:
    host = FakeHost()
    host.llm.enqueue("a", failure)
    items = items_of(host, {"prompt": "a", "stream": True})
    assert texts([await anext(items)]) == [["a"]]
    last = await anext(items)
    with pytest.raises(expected) as caught:
        await anext(items)
    assert "error" not in last
    assert last["choices"][0]["error"] == caught.value.to_error()
    assert last["usage"] == {"input": 1, "output": 1}


async def test_one_prompt_of_several_that_fails_ends_the_others() -> None:
    host = FakeHost()
    host.llm.enqueue("a", STALL)
    host.llm.enqueue("b", RuntimeError())
    with pytest.raises(InternalError):
        await run(host, {"prompt": ["a", "b"], "stream": True})
    assert sorted(host.llm.aborted) == ["job-0", "job-1"]
    assert host.unfinished_requests == 0


async def test_an_error_as_finish_reason_is_a_failure() -> None:
    class Failing(FakeLLM):
        def generate(self, *args: Any, **options: Any) -> Any:
            outputs = super().generate(*args, **options)

            async def spoilt() -> Any:
                async for output in outputs:
                    output.outputs[0].finish_reason = "error"
                    yield output

            return spoilt()

    with pytest.raises(InternalError):
        await run(FakeHost(Failing()), {"prompt": "a"})


JOBS: list[dict[str, Any]] = [
    {"prompt": "a"},
    {"prompt": "a", "stream": True},
    {"prompt": ["a", "b"], "stream": True},
    {"prompt": "a", "stream": True, "max_batch_size": 4},
]


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("script", [(STALL,), ("a", STALL)])
async def test_cancelling_while_waiting_ends_the_request(
    job: dict[str, Any], script: tuple[Any, ...]
) -> None:
    host = FakeHost()
    prompts = len(job["prompt"]) if isinstance(job["prompt"], list) else 1
    for _ in range(prompts):
        host.llm.enqueue(*script)
    task = asyncio.create_task(run(host, job))
    await asyncio.sleep(0.02)
    assert host.unfinished_requests == prompts
    task.cancel()
    await asyncio.wait([task])
    assert host.unfinished_requests == 0
    assert len(host.llm.aborted) == prompts


@pytest.mark.parametrize("job", [job for job in JOBS if job.get("stream")])
async def test_closing_while_the_consumer_holds_an_item_ends_the_request(job: dict[str, Any]) -> None:
    host = FakeHost()
    for _ in range(2):
        host.llm.enqueue(*"abcdef", STALL)
    items = items_of(host, job)
    await anext(items)
    await items.aclose()
    assert host.unfinished_requests == 0
    assert sorted(host.llm.aborted) == sorted(host.llm.started) != []


async def test_closing_before_the_start_touches_nothing() -> None:
    host = FakeHost()
    await items_of(host, {"prompt": "a"}).aclose()
    assert host.llm.started == host.frontend.rendered == []


async def test_closing_after_the_end_aborts_nothing() -> None:
    host = FakeHost()
    items = items_of(host, {"prompt": "a", "stream": True})
    async for _ in items:
        pass
    await items.aclose()
    assert host.llm.aborted == []


def completions(seen: list[Any]) -> Any:
    async def answer(request: Request) -> JSONResponse:
        body = await request.json()
        seen.append((body, request.headers["x-request-id"]))
        choices = [
            {"index": index, "text": f"t{index}", "finish_reason": "length"} for index in range(body["n"])
        ]
        return JSONResponse({"choices": choices, "usage": {"prompt_tokens": 2, "completion_tokens": 9}})

    return Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])


@pytest.mark.parametrize("wants_stream", [False, True])
async def test_beam_search_goes_through_the_completions_route(wants_stream: bool) -> None:
    seen: list[Any] = []
    host = FakeHost(app=completions(seen))
    params = {"use_beam_search": True, "n": 3, "length_penalty": 0.5, "temperature": 0, "top_p": 1}
    job = {"prompt": "ab abc", "sampling_params": params, "stream": wants_stream}
    (item,) = await run(host, job, default_max_tokens=9)
    assert [choice["tokens"] for choice in item["choices"]] == [["t0"], ["t1"], ["t2"]]
    assert item["usage"] == {"input": 2, "output": 9}
    body = {"model": "model", "prompt": [2, 3], "max_tokens": 9, "n": 3, "length_penalty": 0.5}
    assert seen == [({**body, "use_beam_search": True, "temperature": 0.0}, "job")]


@pytest.mark.parametrize("extra", [{"top_p": 0.5}, {"guided_choice": ["a", "b"]}, {"logprobs": 2}])
async def test_what_beam_search_would_ignore_is_refused(extra: dict[str, Any]) -> None:
    params = {"use_beam_search": True, **extra}
    with pytest.raises(RequestError):
        await run(FakeHost(app=completions([])), {"prompt": "a", "sampling_params": params})


@pytest.mark.parametrize(
    "constraint",
    [
        {"guided_regex": r"(\w{1,20} ?){1,20}"},
        {"guided_grammar": "root ::= root root | [^a]"},
        {"structured_outputs": {"grammar": "start: (/[a-z]+/ /[ ]?/)+"}},
        {"structured_outputs": {"structural_tag": {"format": {"type": "regex", "pattern": "(.+)+"}}}},
    ],
)
async def test_a_constraint_that_would_stall_the_engine_never_reaches_it(constraint: dict[str, Any]) -> None:
    host = FakeHost()
    with pytest.raises(RequestError, match="too many ways"):
        await run(host, {"prompt": "a", **constraint})
    assert host.llm.started == []
