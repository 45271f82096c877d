"""With vLLM's statistics off (DISABLE_LOG_STATS) the worker still sees whether the engine gets on."""

from __future__ import annotations

import asyncio

from tests import models
from tests.vllm.conftest import build
from tests.vllm.driving import run
from worker_vllm.serverless.health import Progress


async def test_an_engine_at_work_makes_steps_and_an_idle_one_does_not(vllm_environment: None) -> None:
    host = await asyncio.to_thread(build, models.tiny(), "--enforce-eager", "--max-model-len", "512",
                                   "--disable-log-stats")  # fmt: skip
    try:
        await host.ready()
        watched = Progress(lambda: host.unfinished_requests > 0, lambda: host.step_count, limit_seconds=5.0)
        job = asyncio.create_task(run(host, {"prompt": "hi", "max_tokens": 300, "ignore_eos": True}))
        counts = set()
        while not job.done():
            await asyncio.sleep(0.02)
            counts.add(host.step_count)
            watched.tick(0.02)
        assert len(counts) > 3, "a plain answer comes at its end, but its steps are seen"
        assert not watched.stalled
        before = host.step_count
        await asyncio.sleep(0.2)
        assert host.step_count == before
        await host.close()
    finally:
        host.stop()
