"""Which of the renderer's work stays in the loop, and that it ends there as it would in the thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from worker_vllm.engine.rendering import SHORT, keep_short_work


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as pool:
        keep_short_work(SimpleNamespace(renderer=SimpleNamespace(_executor=pool)))
        yield pool


def where(*_: Any, **__: Any) -> int:
    return threading.get_ident()


async def ask(executor: ThreadPoolExecutor, function: Any) -> Any:
    """As vLLM's `make_async` does it."""
    return await asyncio.get_running_loop().run_in_executor(executor, function)


@pytest.mark.parametrize(
    "call",
    [
        partial(where, {"prompt": "hi"}, None),
        partial(where, object(), [{"role": "user", "content": "hi"}], tools=[{"name": "f"}]),
        partial(where, "hi", chat_template="{{ x }}" * SHORT),
        partial(where, [1, 2, 3]),
    ],
)
async def test_short_work_is_done_in_the_loop(executor: ThreadPoolExecutor, call: Any) -> None:
    assert await ask(executor, call) == threading.get_ident()


@pytest.mark.parametrize(
    "call",
    [
        partial(where, {"prompt": "x" * SHORT}),
        partial(where, [{"role": "user", "content": "x"}] * SHORT),
        partial(where, "hi", tools=[{"description": "x" * SHORT}]),
        partial(where, [1] * SHORT),
        where,
    ],
)
async def test_long_work_and_what_nobody_can_measure_goes_to_the_thread(
    executor: ThreadPoolExecutor, call: Any
) -> None:
    assert await ask(executor, call) != threading.get_ident()


async def test_an_exception_reaches_who_asked(executor: ThreadPoolExecutor) -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        await ask(executor, partial(int, "no number"))


@pytest.mark.parametrize(
    "llm", [SimpleNamespace(), SimpleNamespace(renderer=SimpleNamespace(_executor=None))]
)
def test_a_vllm_without_such_a_thread_is_left_alone(llm: Any) -> None:
    keep_short_work(llm)
