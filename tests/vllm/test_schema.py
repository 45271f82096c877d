"""vLLM's own description of its routes, as schemathesis reads it, sent job by job through the handler."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from tests import models
from tests.contract.emulator_process import local_process
from tests.fuzz.driving import Worker, codes_of
from tests.vllm.driving import is_idle, settles
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.routes import INFERENCE_ROUTES

CASES = int(os.environ.get("FUZZ_CASES", "300")) // 50
"""For each route and kind of case."""
TOGETHER = 10
SHARE = 4
"""Every so many calls go over HTTP as well."""
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "MAX_MODEL_LEN": "512"}


def jobs(app: Any) -> list[dict[str, Any]]:
    """Cases that keep to the description and cases that break it, for each route that jobs may call."""
    found: list[dict[str, Any]] = []
    schema = schemathesis.openapi.from_dict(app.openapi())
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path not in INFERENCE_ROUTES:
            continue
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @settings(
                max_examples=CASES,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
                derandomize=True,
            )
            @given(operation.as_strategy(generation_mode=mode))
            def draw(case: Any) -> None:
                body = case.body if isinstance(case.body, dict) else {}
                path = case.formatted_path
                found.append({"route": path, "method": case.method.upper(), "body": _short(body)})

            try:
                draw()
            except Exception as error:  # a mode that an operation cannot have: nothing to break
                if "Unsatisfiable" not in type(error).__name__ and "Skip" not in type(error).__name__:
                    raise
    return found


def _short(body: dict[str, Any]) -> dict[str, Any]:
    """The same with short answers, where it asks for any."""
    limits = {
        name: 2 for name in ("max_tokens", "max_completion_tokens", "max_output_tokens") if name in body
    }
    return {**body, **limits}


@pytest.mark.timeout(3600)
async def test_no_call_that_the_schema_allows_or_forbids_is_a_5xx(tiny: EngineHost) -> None:
    worker = Worker(tiny)
    codes: Counter[int] = Counter()
    drawn = await asyncio.to_thread(jobs, tiny.app)
    for start in range(0, len(drawn), TOGETHER):
        found, _ = await codes_of(worker, drawn[start : start + TOGETHER])
        codes.update(found)
    print(f"{len(drawn)} calls, answers by code: {dict(sorted(codes.items()))}")
    assert codes.keys() >= {200, 400}
    assert await settles(tiny, 5.0)
    assert await is_idle(tiny)


@pytest.mark.timeout(3600)
async def test_nor_is_one_through_the_local_platform(tiny: EngineHost, tmp_path: Path) -> None:
    """A part of the same calls, over HTTP, the real SDK and a worker of its own."""
    drawn = (await asyncio.to_thread(jobs, tiny.app))[::SHARE]
    model = ("--model", str(models.tiny()))
    codes: Counter[int] = Counter()
    with local_process(*model, worker=None, log=tmp_path / "log", **ENVIRONMENT) as local:
        async with aiohttp.ClientSession(headers={"Authorization": "Bearer any"}) as session:
            for start in range(0, len(drawn), TOGETHER):
                calls = (code_of(session, local.url, job) for job in drawn[start : start + TOGETHER])
                codes.update(await asyncio.gather(*calls))
        assert await asyncio.to_thread(local.stop, signal.SIGTERM, 60) == 0
    print(f"{len(drawn)} calls over HTTP, answers by code: {dict(sorted(codes.items()))}")
    assert codes.keys() >= {200, 400}
    assert max(codes) < 500


async def code_of(session: aiohttp.ClientSession, url: str, job: dict[str, Any]) -> int:
    """The status that the caller of a job is told; 599 for anything but an answer or a coded error."""
    async with session.post(f"{url}/runsync?wait=120000", json={"input": job}) as response:
        body = await response.json()
    assert "Traceback" not in json.dumps(body)
    if body.get("status") == "COMPLETED":
        return 200
    try:
        return int(json.loads(body["error"])["code"])
    except (KeyError, ValueError):
        return response.status if response.status >= 400 else 599
