"""What of vLLM's app is in a job's way."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any

from tests.vllm.driving import run, stream
from worker_vllm.engine.lifecycle import EngineHost

EVENTS = {
    "openai_route": "/v1/completions",
    "openai_input": {"prompt": "hi", "stream": True, "max_tokens": 64, "ignore_eos": True},
}


def layers(app: Any) -> list[str]:
    """The names of what a request passes on its way to the routes."""
    found, layer = [], app.middleware_stack
    while layer is not None:
        found.append(type(layer).__name__)
        layer = getattr(layer, "app", None)
    return found


async def test_layers_that_serve_an_http_port_are_left_out(tiny: EngineHost) -> None:
    await run(tiny, {"openai_route": "/v1/models"})
    names = layers(tiny.app)
    assert "ExceptionMiddleware" in names
    assert not {"CORSMiddleware", "PrometheusInstrumentatorMiddleware"} & set(names)


async def test_no_task_looks_for_a_connections_end(tiny: EngineHost) -> None:
    await run(tiny, EVENTS)  # the first request starts AsyncLLM's own task
    before = asyncio.all_tasks()
    async with aclosing(stream(tiny, EVENTS)) as chunks:
        await anext(chunks)
        tasks = [task.get_coro().__qualname__ for task in asyncio.all_tasks() - before]
    assert tasks == ["_call"]
