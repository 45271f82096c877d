"""The real engine answers whatever a job holds, or vLLM says what is wrong with it, and it outlives all.

In full: FUZZ_CASES=20000. Ten jobs run at once, so that one job's harm to another shows as well.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.fuzz.driving import Worker, codes_of
from tests.fuzz.inputs import CASES, NATIVE_INPUT, ROUTE_INPUT
from tests.vllm.driving import is_idle, run, settles, text_of
from worker_vllm.engine.lifecycle import EngineHost

TOGETHER = 10
GREEDY = {"prompt": "hello there", "sampling_params": {"temperature": 0, "max_tokens": 4}}
# what vLLM says of what it does not have, in 5xx
UNSUPPORTED = 501


def batches(kind: st.SearchStrategy[Any]) -> list[list[Any]]:
    """The cases, drawn beforehand: hypothesis runs no coroutines, and the engine belongs to this loop."""
    found: list[list[Any]] = []

    @settings(
        max_examples=max(2, CASES // TOGETHER // 2),
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        derandomize=True,
    )
    @given(st.lists(kind, min_size=TOGETHER, max_size=TOGETHER))
    def draw(batch: list[Any]) -> None:
        found.append(batch)

    draw()
    random.Random(7).shuffle(found)
    return found


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", [NATIVE_INPUT, ROUTE_INPUT], ids=["native", "route"])
async def test_no_job_is_the_workers_or_the_engines_fault(tiny: EngineHost, kind: Any) -> None:
    worker = Worker(tiny)
    (expected,) = await run(tiny, GREEDY)
    codes: Counter[int] = Counter()
    for batch in batches(kind):
        found, lines = await codes_of(worker, batch)
        codes.update(found)
        assert lines == [], batch
    print("answers by code:", dict(sorted(codes.items())))
    assert codes[200] > 0
    assert await settles(tiny, 5.0)
    assert await is_idle(tiny)
    (after,) = await run(tiny, GREEDY)
    assert text_of([after]) == text_of([expected])
