"""The messages of the engine's process, one per step, as AsyncLLM takes them.

AsyncLLM handles each by itself, and a request's output costs the same whether it holds one token or many:
some 10 to 20 µs of the loop that also takes jobs and feeds streams. So what has come while the loop was busy,
as in a burst of new jobs, is handled together, as vLLM does where a step makes several tokens of a request.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from functools import cache
from operator import attrgetter, is_
from typing import Any

_MAX_TURN_SECONDS = 0.01


def listen(
    core: Any, *, alone: Callable[[str], bool], on_message: Callable[[int, Any], None] | None = None
) -> None:
    """Stand where AsyncLLM takes the messages of the engine's process.

    AsyncLLM takes them for as long as there are any, and an engine that is ahead of this process leaves no
    turn of the loop to the streams (gaps of two seconds were seen on a busy machine). So the loop goes round
    in between.

    Args:
        core: AsyncLLM's client of the engine.
        alone: whether the request of that id wants each of its tokens handled by itself.
        on_message: takes each message for a step: what a worker without statistics has to tell an engine that
            hangs from one at work.
    """
    receive = core.get_output_async
    waiting: Any = getattr(core, "outputs_queue", None)
    taken: deque[Any] = deque()
    went_round_at = time.monotonic()

    async def take() -> None:
        taken.append(await receive())
        try:
            while waiting is not None and not waiting.empty():
                taken.append(await receive())
        except Exception as error:  # the engine's end, which comes after what it has made
            taken.append(error)
        gather([message for message in taken if not isinstance(message, Exception)], alone)

    async def receive_in_turn() -> Any:
        nonlocal went_round_at
        if time.monotonic() - went_round_at > _MAX_TURN_SECONDS:
            await asyncio.sleep(0)
            went_round_at = time.monotonic()
        if not taken:
            await take()
        message = taken.popleft()
        if isinstance(message, Exception):
            raise message
        if on_message is not None:
            on_message(getattr(message, "engine_index", 0), None)
        return message

    core.get_output_async = receive_in_turn


def gather(messages: Sequence[Any], alone: Callable[[str], bool]) -> None:
    """Move the outputs of all messages into the last one of each engine, a request's plain tokens into one
    output. Everything else that a message tells (statistics, calls that were answered) stays in it."""
    lasts = {message.engine_index: message for message in messages}
    if len(lasts) == len(messages):
        return
    outputs: dict[int, list[Any]] = {index: [] for index in lasts}
    latest: dict[str, Any] = {}
    for message in messages:
        for output in message.outputs:
            before = latest.get(output.request_id)
            if before is not None and _goes_on(before, output) and not alone(output.request_id):
                before.new_token_ids.extend(output.new_token_ids)
            else:
                outputs[message.engine_index].append(output)
                latest[output.request_id] = output
        message.outputs = []
    for index, message in lasts.items():
        message.outputs = outputs[index]


def _goes_on(before: Any, output: Any) -> bool:
    """Whether an output says nothing but which tokens follow those of the one before."""
    rest, defaults = _rest_of(output.__class__)
    return before.finish_reason is None and all(map(is_, rest(output), defaults))


@cache
def _rest_of(kind: Any) -> tuple[Callable[[Any], Collection[Any]], Collection[Any]]:
    """What reads an output's fields but for its id and tokens, and their values where there is no news."""
    defaults = kind.__struct_defaults__
    return attrgetter(*kind.__struct_fields__[-len(defaults) :]), defaults
