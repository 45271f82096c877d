"""Where the real engine's prompts are rendered and tokenized."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.vllm.driving import run
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.rendering import SHORT

PARAMS = {"max_tokens": 1}


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Whatever any pool of threads is given."""
    seen: list[Any] = []
    submit = ThreadPoolExecutor.submit

    def note(self: ThreadPoolExecutor, function: Any, /, *args: Any, **options: Any) -> Any:
        seen.append(function)
        return submit(self, function, *args, **options)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", note)
    return seen


def jobs(text: str) -> list[dict[str, Any]]:
    return [
        {"prompt": text, "sampling_params": PARAMS},
        {"messages": [{"role": "user", "content": text}], "sampling_params": PARAMS},
    ]


async def test_short_prompts_are_rendered_in_the_loop(tiny: EngineHost, submitted: list[Any]) -> None:
    for job in jobs("hello"):
        await run(tiny, job)
    assert submitted == []


async def test_long_prompts_leave_the_loop_to_others(tiny: EngineHost, submitted: list[Any]) -> None:
    for number, job in enumerate(jobs(" international" * (SHORT // 14 + 1)), 1):
        await run(tiny, job)
        assert len(submitted) >= number
