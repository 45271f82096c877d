"""Each way in which work can be stopped, in each phase that a job can be in: what becomes of it, and what is
left behind.

A worker takes three jobs at once: one before its first token, one in mid-stream, one whose chunk the platform
holds. A fourth waits behind them, a fifth is over. Then it happens. All workers run at the same time.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from tests.chaos import arena
from tests.chaos.arena import Arena, eventually
from tests.chaos.cases import Reading, ScriptedTarget, read
from tests.chaos.ledger import error_of
from tests.documents import RELIABILITY, rows, section

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

PHASES = ("queued", "before the first token", "in mid-stream", "while a chunk is posted", "after the end")
EXPECTED = {
    "cancel by the client": ("CANCELLED", "CANCELLED", "CANCELLED", "CANCELLED", "COMPLETED"),
    "stop message": ("COMPLETED", "COMPLETED again", "COMPLETED again", "COMPLETED again", "COMPLETED"),
    "executionTimeout": ("COMPLETED", "FAILED 504", "FAILED 504", "FAILED 504", "COMPLETED"),
    "SIGTERM": ("COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED", "COMPLETED"),
    "second SIGTERM": ("COMPLETED", "FAILED 503", "FAILED 503", "FAILED 503", "COMPLETED"),
    "engine SIGKILL": ("COMPLETED", "FAILED 500", "FAILED 500", "FAILED 500", "COMPLETED"),
    "engine SIGSTOP": ("COMPLETED", "FAILED 500", "FAILED 500", "FAILED 500", "COMPLETED"),
    "worker SIGKILL": ("COMPLETED", "COMPLETED again", "COMPLETED again", "COMPLETED again", "COMPLETED"),
    "SIGSTOP, SIGCONT of everything": ("COMPLETED",) * 5,
    "connection cut at a chunk": ("COMPLETED",) * 5,
}
EXIT_CODES = {
    "SIGTERM": 0,
    "second SIGTERM": 0,
    "engine SIGKILL": 4,
    "engine SIGSTOP": 4,
    "worker SIGKILL": 137,
}
KILLS = {"SIGTERM": "worker SIGTERM", "second SIGTERM": "worker SIGTERM twice"}

WORK_SECONDS, STEP_SECONDS = 1.5, 0.05
HOLD_SECONDS = 4.0
TIMEOUT_MS = 8000
"""The worker gives up 0.8 s before, which has to be enough on a busy machine, too."""
CLOSED_SECONDS = 0.3
"""From a cancel to the generator's `finally`; a few milliseconds on an idle machine."""
POLICY = replace(arena.POLICY, lost_after_s=5.0)

Jobs = dict[str, str]


@dataclass
class Outcome:
    """What was left behind.

    Attributes:
        ends: by phase, the job's state, with its error's code or whether it was picked up again.
        streams: by phase, what was streamed in the last attempt.
        posts: by phase, how many ends the platform saw.
        open: ids of jobs whose generators have not run their `finally`.
    """

    ends: dict[str, str] = field(default_factory=dict)
    streams: dict[str, Reading] = field(default_factory=dict)
    posts: dict[str, int] = field(default_factory=dict)
    exits: list[int] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    open: set[str] = field(default_factory=set)


def item(text: str) -> list[Any]:
    return ["yield", {"choices": [{"tokens": [text]}]}]


def script(phase: str, path: str) -> str:
    """What the job in this phase does."""
    seconds = 1.5 * TIMEOUT_MS / 1000 if path == "executionTimeout" else WORK_SECONDS
    work = [["step", STEP_SECONDS]] * int(seconds / STEP_SECONDS)
    if phase == "before the first token":
        steps = [*work, item("a"), item("b")]
    elif phase in ("in mid-stream", "while a chunk is posted"):
        steps = [item("a"), *work, item("b")]
    else:
        steps = [item("a"), item("b")]
    return json.dumps(steps)


async def begin(scene: Arena, path: str) -> Jobs:
    """Bring a job into each phase."""
    jobs: Jobs = {}
    limit = {"executionTimeout": TIMEOUT_MS} if path == "executionTimeout" else {}
    cut = "reset_after" if path == "connection cut at a chunk" else None

    async def submit(phase: str) -> None:
        job_input = {"prompt": script(phase, path), "stream": True}
        jobs[phase] = await scene.submit(job_input, **limit)
        if cut and phase != "after the end":
            scene.platform.faults.add("reset_after", "job-stream", contains=jobs[phase], times=1, skip=1)

    await submit("after the end")
    await scene.queue.get(jobs["after the end"]).wait_ended(20)
    held = scene.platform.faults.add("hold" if cut else "delay", "job-stream", times=0)
    held.seconds = 1.5 * TIMEOUT_MS / 1000 if limit else HOLD_SECONDS
    for phase in PHASES[1:4]:
        await submit(phase)
        if phase == "while a chunk is posted":
            held.contains, held.times = jobs[phase], 1
            await eventually(lambda: held.hits > 0, 20, scene.last_words)
        await eventually(lambda phase=phase: bool(scene.tap.histories[jobs[phase]].attempts), 20)  # type: ignore[misc]
    await submit("queued")
    await eventually(lambda: bool(scene.tap.histories[jobs["in mid-stream"]].attempts[-1].chunks), 20)
    return jobs


async def happen(scene: Arena, path: str, jobs: Jobs) -> None:
    """The stop path itself."""
    if path == "cancel by the client":
        for phase in PHASES:
            await scene.call(f"cancel/{jobs[phase]}")
        await eventually(lambda: not open_generators(scene), CLOSED_SECONDS, scene.last_words)
    elif path == "stop message":
        for phase in PHASES:
            scene.platform.registry.stop_job(arena.WORKER, jobs[phase])
    elif path == "SIGSTOP, SIGCONT of everything":
        await scene.pause(path)
    elif path in EXIT_CODES:
        await scene.kill(KILLS.get(path, path))


def open_generators(scene: Arena) -> set[str]:
    """Jobs whose generators have begun and not ended."""
    counts: dict[str, int] = {}
    for line in (scene.home / "events").read_text().splitlines():
        event = json.loads(line)
        if event["event"] in ("began", "ended"):
            counts[event["id"]] = counts.get(event["id"], 0) + (1 if event["event"] == "began" else -1)
    return {job_id for job_id, count in counts.items() if count}


async def play(path: str) -> Outcome:
    outcome = Outcome()
    async with arena.arena(ScriptedTarget(), 0, POLICY, MAX_CONCURRENCY="3") as scene:
        jobs = await begin(scene, path)
        await happen(scene, path, jobs)
        for phase, job_id in jobs.items():
            assert await scene.queue.get(job_id).wait_ended(40), (path, phase, scene.last_words())
        after = await scene.answer({"prompt": json.dumps([item("alive")])})
        assert read(after["output"]).text == "alive"
        for phase, job_id in jobs.items():
            job, history = await scene.call(f"status/{job_id}"), scene.tap.histories[job_id]
            code = f" {error_of(job)['code']}" if "error" in job else ""
            again = " again" if len(history.attempts) > 1 else ""
            outcome.ends[phase] = f"{job['status']}{code}{again}"
            outcome.streams[phase] = read(history.attempts[-1].chunks if history.attempts else [])
            outcome.posts[phase] = history.ends
            if job["status"] == "COMPLETED":
                assert read(job["output"]).text == "ab", (path, phase, job)
        outcome.open = open_generators(scene)
        outcome.exits = [exit.code for exit in scene.pool.exits]
        outcome.left = [left for exit in scene.pool.exits for left in exit.left]
    outcome.left += scene.remains
    return outcome


@pytest.fixture(scope="module")
def outcomes() -> dict[str, Outcome]:
    async def all_at_once() -> list[Outcome]:
        return await asyncio.gather(*(play(path) for path in EXPECTED))

    return dict(zip(EXPECTED, asyncio.run(all_at_once()), strict=True))


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("path", EXPECTED)
def test_a_job_ends_once_and_as_the_table_says(outcomes: dict[str, Outcome], path: str, phase: str) -> None:
    outcome = outcomes[path]
    assert outcome.ends[phase] == EXPECTED[path][PHASES.index(phase)]
    assert outcome.posts[phase] == 1


@pytest.mark.parametrize("path", EXPECTED)
def test_a_stream_says_where_it_ends_early(outcomes: dict[str, Outcome], path: str) -> None:
    for phase, end in outcomes[path].ends.items():
        stream = outcomes[path].streams[phase]
        code = (stream.error or {}).get("code")
        is_held = phase == "while a chunk is posted"
        if end.startswith("FAILED") and is_held:
            assert stream.error is None, "nothing is posted behind a chunk whose fate is unknown"
        elif end.startswith("FAILED"):
            assert code == int(end.split()[1]) or not stream.text, (
                "a native stream without a chunk has no form"
            )
        elif path == "connection cut at a chunk" and phase != "after the end":
            assert code == 503
        elif end.startswith("COMPLETED"):
            assert (stream.text, code) == ("ab", None)


@pytest.mark.parametrize("path", EXPECTED)
def test_nothing_is_left_running_or_lying_about(outcomes: dict[str, Outcome], path: str) -> None:
    outcome = outcomes[path]
    assert outcome.exits == ([EXIT_CODES[path]] if path in EXIT_CODES else [])
    assert outcome.left == []
    # a process that was killed could not say goodbye; its successor's generators have all ended
    assert len(outcome.open) <= (3 if path == "worker SIGKILL" else 0)


def test_the_table_in_the_document_is_this_one() -> None:
    told = {cells[0]: tuple(cells[1:]) for cells in rows(section(RELIABILITY, "## Stop paths and phases"))}
    assert told == EXPECTED
