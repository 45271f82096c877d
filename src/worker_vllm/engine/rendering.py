"""Short prompts are rendered and tokenized where they are, not in vLLM's thread.

vLLM hands each chat template and each tokenization to one thread, so that a long prompt does not stop the
loop. A short one takes less time than its way there and back: two futures with their locks, a wake-up of the
thread, one of the loop, and at a burst a fight over the interpreter's lock.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from functools import partial
from typing import Any

from worker_vllm.job_values import measure

SHORT = 4_000
"""Values and characters of what is rendered: about a millisecond's work."""

_OPERATORS = frozenset({"chat_template"})
"""Arguments whose length says nothing of the work."""


def keep_short_work(llm: Any) -> None:
    """Let `llm`'s renderer do short work in the loop that asks for it. A version that keeps its thread
    elsewhere is left alone (0.28 to 0.32 have it in `renderer._executor`)."""
    executor = getattr(getattr(llm, "renderer", None), "_executor", None)
    if not isinstance(executor, Executor):
        return

    def do_or_submit(function: Any, /, *args: Any, **options: Any) -> Any:
        if args or options or not _is_short(function):
            return type(executor).submit(executor, function, *args, **options)
        # `run_in_executor`, who asks, takes a future of the loop as it is
        done = asyncio.get_running_loop().create_future()
        try:
            done.set_result(function())
        except Exception as error:
            done.set_exception(error)
        return done

    executor.submit = do_or_submit  # type: ignore[method-assign]


def _is_short(function: Any) -> bool:
    """Whether a call that is ready to be made has little to read; nobody can tell of another function."""
    if not isinstance(function, partial):
        return False
    options = (value for name, value in function.keywords.items() if name not in _OPERATORS)
    data = [item for item in (*function.args, *options) if isinstance(item, str | dict | list | tuple)]
    values, size = measure(data, SHORT)
    return values + size < SHORT
