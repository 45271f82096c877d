"""What AsyncLLM gets of the engine's messages, and when."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from worker_vllm import vllm_outputs


class Output:
    """An output of one request in one step; a msgspec.Struct, as vLLM's are, has these marks too."""

    __struct_fields__ = ("request_id", "new_token_ids", "new_logprobs", "finish_reason", "num_nans_in_logits")
    __struct_defaults__ = (None, None, 0)

    def __init__(self, request_id: str, *tokens: int, **more: Any) -> None:
        self.request_id = request_id
        self.new_token_ids = list(tokens)
        for name, default in zip(self.__struct_fields__[2:], self.__struct_defaults__, strict=True):
            setattr(self, name, more.get(name, default))

    def __repr__(self) -> str:
        return f"{self.request_id}{self.new_token_ids}{self.finish_reason or ''}"


class Message:
    """What the engine's process says after a step."""

    def __init__(self, *outputs: Output, engine_index: int = 0) -> None:
        self.outputs = list(outputs)
        self.engine_index = engine_index


class Core:
    """AsyncLLM's client of the engine, as far as it hands out messages: an exception among them is raised."""

    def __init__(self, *messages: Any) -> None:
        self.outputs_queue: asyncio.Queue[Any] = asyncio.Queue()
        for message in messages:
            self.outputs_queue.put_nowait(message)

    async def get_output_async(self) -> Any:
        message = await self.outputs_queue.get()
        if isinstance(message, Exception):
            raise message
        return message


def together(_: str) -> bool:
    return False


def gathered(*messages: Message, alone: Any = together) -> list[str]:
    vllm_outputs.gather(messages, alone)
    return [" ".join(map(repr, message.outputs)) for message in messages]


def test_a_requests_tokens_of_several_steps_become_one_output() -> None:
    steps = [Message(Output("a", 1), Output("b", 10)), Message(Output("a", 2)), Message(Output("a", 3, 4))]
    assert gathered(*steps) == ["", "", "a[1, 2, 3, 4] b[10]"]


def test_a_step_alone_stays_as_it_is() -> None:
    outputs = [Output("a", 1), Output("a", 2)]
    message = Message(*outputs)
    vllm_outputs.gather([message], together)
    assert message.outputs == outputs


@pytest.mark.parametrize(
    "news", [{"new_logprobs": object()}, {"finish_reason": "stop"}, {"num_nans_in_logits": 1}]
)
def test_an_output_with_news_of_its_own_stays_apart(news: dict[str, Any]) -> None:
    last = Output("a", 2, **news)
    steps = [Message(Output("a", 1)), Message(last)]
    vllm_outputs.gather(steps, together)
    assert [output.new_token_ids for output in steps[1].outputs] == [[1], [2]]
    assert steps[1].outputs[1] is last


def test_the_first_output_of_a_request_takes_the_tokens_that_follow() -> None:
    first = Output("a", 1, new_logprobs=object())
    steps = [Message(first), Message(Output("a", 2))]
    vllm_outputs.gather(steps, together)
    assert steps[1].outputs == [first]
    assert first.new_token_ids == [1, 2]


def test_nothing_is_added_to_an_answer_that_has_ended() -> None:
    steps = [Message(Output("a", 1, finish_reason="stop")), Message(Output("a", 2))]
    assert gathered(*steps) == ["", "a[1]stop a[2]"]


def test_a_request_that_wants_each_token_gets_them_in_order() -> None:
    steps = [Message(Output("a", 1), Output("b", 1)), Message(Output("a", 2), Output("b", 2))]
    assert gathered(*steps, alone=lambda name: name == "a") == ["", "a[1] b[1, 2] a[2]"]


def test_each_engine_has_its_own_last_message() -> None:
    steps = [Message(Output("a", 1)), Message(Output("b", 1), engine_index=1), Message(Output("a", 2))]
    assert gathered(*steps) == ["", "b[1]", "a[1, 2]"]


async def test_what_has_come_meanwhile_is_handed_over_together_and_every_message_is_seen() -> None:
    core = Core(Message(Output("a", 1)), Message(Output("a", 2)))
    steps: list[int] = []
    vllm_outputs.listen(core, alone=together, on_message=lambda index, stats: steps.append(index))
    assert [repr((await core.get_output_async()).outputs) for _ in range(2)] == ["[]", "[a[1, 2]]"]
    core.outputs_queue.put_nowait(Message(Output("a", 3)))
    assert repr((await core.get_output_async()).outputs) == "[a[3]]"
    assert steps == [0, 0, 0]


async def test_the_engines_death_comes_after_what_it_has_made() -> None:
    core = Core(Message(Output("a", 1)), Message(Output("a", 2)), RuntimeError("dead"))
    vllm_outputs.listen(core, alone=together)
    assert [repr((await core.get_output_async()).outputs) for _ in range(2)] == ["[]", "[a[1, 2]]"]
    with pytest.raises(RuntimeError, match="dead"):
        await core.get_output_async()


async def test_a_client_without_a_queue_hands_over_one_by_one() -> None:
    core = Core(Message(Output("a", 1)), Message(Output("a", 2)))
    receive, queue = core.get_output_async, core.outputs_queue

    class Bare:
        async def get_output_async(self) -> Any:
            return await receive()

    bare = Bare()
    vllm_outputs.listen(bare, alone=together)
    assert repr((await bare.get_output_async()).outputs) == "[a[1]]"
    assert queue.qsize() == 1


async def test_others_get_their_turn_while_messages_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_outputs, "_MAX_TURN_SECONDS", 0.0)
    core = Core(*(Message(Output("a", number)) for number in range(5)))
    vllm_outputs.listen(core, alone=together)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.ensure_future(count())
    for _ in range(5):
        await core.get_output_async()
    counting.cancel()
    assert turns >= 5
