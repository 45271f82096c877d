"""A hundred jobs and every kind of fault; CHAOS_JOBS=1000 is the full form, CHAOS_SEED another run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.chaos.cases import RealTarget, ScriptedTarget, Target
from tests.chaos.plan import Plan
from tests.chaos.run import run

JOBS = int(os.environ.get("CHAOS_JOBS", "100"))
SEED = int(os.environ.get("CHAOS_SEED", "4"))
FULL = JOBS >= 1000


async def survives(target: Target) -> None:
    plan = Plan.make(SEED, target, JOBS)
    print(f"\nseed {SEED}: CHAOS_SEED={SEED} CHAOS_JOBS={JOBS} repeats this run")
    ledger = await run(target, plan)
    if "CHAOS_LOG" in os.environ:
        Path(os.environ["CHAOS_LOG"]).write_text("\n".join(ledger.log()))  # noqa: ASYNC240
    for line in (*ledger.lines(), *ledger.summary(), *ledger.problems):
        print(line)
    assert ledger.problems == []


@pytest.mark.slow
@pytest.mark.timeout(3600 if FULL else 300)
async def test_a_scripted_engine_survives_every_fault() -> None:
    await survives(ScriptedTarget())


@pytest.mark.engine
@pytest.mark.timeout(3600 if FULL else 600)
async def test_the_real_engine_survives_every_fault() -> None:
    await survives(RealTarget())
