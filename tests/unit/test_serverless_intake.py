"""Intake by itself, in front of a scaler that has only the parts it uses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from worker_vllm.serverless import intake
from worker_vllm.serverless.intake import PromptIntake

Answer = list[dict[str, Any]] | Exception | None


class FakeScaler:
    """As much of the SDK's JobScaler as the mixin stands on."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.current_concurrency = 1
        self.jobs_queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.jobs_tasks: dict[str, asyncio.Task[None]] = {}
        self.job_progress: set[str] = set()
        self.jobs_fetcher: Any = config["fetch"]
        self.jobs_fetcher_timeout = 5.0
        self._shutdown_event = asyncio.Event()

    async def run(self) -> None:
        await asyncio.gather(self.get_jobs(None), self.run_jobs(None), self.monitor_stop_signals(None))  # type: ignore[attr-defined]

    async def set_scale(self) -> None:
        self.current_concurrency = self.config["concurrency"]

    async def handle_job(self, session: Any, job: dict[str, Any]) -> None:
        try:
            await self.config["handler"](job)
        finally:
            self.jobs_queue.task_done()
            del self.jobs_tasks[job["id"]]

    async def monitor_stop_signals(self, session: Any) -> None:
        await asyncio.Event().wait()


class Progress:
    """The SDK's set of running jobs."""

    def add(self, job: dict[str, Any]) -> None:
        dict(**job, self=None)  # the SDK's class fails on such a key too


class Scaler(PromptIntake, FakeScaler):  # type: ignore[misc]
    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self.job_progress = Progress()


class Fetches:
    """Answers polls from a script, and holds every later one."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, int]] = []

    async def __call__(self, session: Any, count: int) -> Answer:
        self.asked.append((time.monotonic(), count))
        if not self.answers:
            await asyncio.Event().wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def keep_the_loop_busy() -> None:
    time.sleep(0.1)


def job(job_id: str) -> dict[str, Any]:
    return {"id": job_id, "input": {}}


async def run(
    fetches: Fetches,
    until: Callable[[list[str]], bool],
    *,
    concurrency: int = 4,
    seconds: float = 0.0,
    **config: Any,
) -> tuple[list[str], Scaler]:
    """Run intake until the handled job ids satisfy `until`, then stop it."""
    handled: list[str] = []

    async def handler(job: dict[str, Any]) -> None:
        handled.append(job["id"])
        await asyncio.sleep(seconds)

    scaler = Scaler({"fetch": fetches, "concurrency": concurrency, "handler": handler, **config})
    running = asyncio.get_running_loop().create_task(scaler.run())
    deadline = time.monotonic() + 5
    while not until(handled):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)
    scaler.kill_worker()
    await asyncio.wait_for(running, 2)
    return handled, scaler


async def test_a_job_starts_at_once_and_the_poll_asks_for_the_free_slots() -> None:
    fetches = Fetches([job("a"), job("b")])
    handled, _ = await run(fetches, lambda ids: len(ids) == 2, seconds=0.2)
    assert handled == ["a", "b"]
    assert [count for _, count in fetches.asked] == [4, 2]


async def test_a_full_worker_asks_again_as_soon_as_a_slot_is_free() -> None:
    fetches = Fetches([job("a")], [job("b")])
    await run(fetches, lambda ids: len(ids) == 2, concurrency=1, seconds=0.1)
    gap = fetches.asked[1][0] - fetches.asked[0][0]
    assert 0.1 <= gap < 0.5


async def test_answers_without_jobs_are_not_asked_for_in_a_tight_loop() -> None:
    fetches = Fetches(*([None] * 1000))
    began = time.monotonic()
    await run(fetches, lambda _: time.monotonic() - began > 0.6)
    assert len(fetches.asked) < 8


async def test_errors_do_not_end_intake_and_are_waited_out(caplog: pytest.LogCaptureFixture) -> None:
    fetches = Fetches(ConnectionResetError("http://secret"), ValueError("x"), TimeoutError(), [job("a")])
    handled, _ = await run(fetches, lambda ids: ids == ["a"])
    assert handled == ["a"]
    assert "ConnectionResetError" in caplog.text
    assert "secret" not in caplog.text


async def test_elements_that_are_no_jobs_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    broken: list[Any] = [{"input": {}}, {"id": "x"}, {"id": 7, "input": {}}, None, {**job("a"), "self": 1}]
    handled, _ = await run(Fetches(broken), lambda ids: ids == ["a"])
    assert handled == ["a"]
    assert "without id or input" in caplog.text


@pytest.mark.parametrize(("stopped", "runs"), [(True, 2), (False, 1)])
async def test_a_job_that_is_handed_over_again_runs_again_only_where_its_run_was_stopped(
    stopped: bool, runs: int
) -> None:
    """A platform that misses a job takes it back with a stop message, and may hand it to the same worker."""
    begun: list[str] = []
    again = asyncio.Event()

    async def fetch(session: Any, count: int) -> list[dict[str, Any]]:
        if begun:
            await again.wait()
            again.clear()
        return [job("a")]

    async def handler(job: dict[str, Any]) -> None:
        begun.append(job["id"])
        try:
            await asyncio.sleep(0.1)
        finally:
            await asyncio.sleep(0.05)  # what a cancelled job takes to clean up

    scaler = Scaler({"fetch": fetch, "concurrency": 4, "handler": handler})
    running = asyncio.get_running_loop().create_task(scaler.run())
    await asyncio.sleep(0.02)
    if stopped:
        scaler.jobs_tasks["a"].cancel()
    again.set()
    await asyncio.sleep(0.02)
    scaler.kill_worker()
    await asyncio.wait_for(running, 2)
    assert begun == ["a"] * runs


async def test_a_job_that_arrives_with_the_stop_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "LINGER_SECONDS", 0.2)
    arrives = asyncio.Event()
    handled: list[str] = []

    async def fetch(session: Any, count: int) -> list[dict[str, Any]]:
        await arrives.wait()
        return [job("late")]

    async def handler(job: dict[str, Any]) -> None:
        await asyncio.sleep(0.1)
        handled.append(job["id"])

    scaler = Scaler({"fetch": fetch, "concurrency": 4, "handler": handler})
    running = asyncio.get_running_loop().create_task(scaler.run())
    await asyncio.sleep(0.05)
    scaler.kill_worker()
    await asyncio.sleep(0.05)
    arrives.set()
    await asyncio.wait_for(running, 2)
    assert handled == ["late"]


async def test_a_job_that_has_arrived_when_the_stop_s_wait_ends_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its answer stands in the socket, and a busy loop lets the timer go first."""
    monkeypatch.setattr(intake, "LINGER_SECONDS", 0.05)
    ran: list[str] = []

    async def fetch(session: Any, count: int) -> list[dict[str, Any]]:
        await scaler._shutdown_event.wait()
        keep_the_loop_busy()  # and the answer arrives meanwhile
        for _ in range(10):  # the turns that reading it takes
            await asyncio.sleep(0)
        return [job("late")]

    async def handler(taken: dict[str, Any]) -> None:
        ran.append(taken["id"])

    async def ready() -> None:
        return

    scaler = Scaler({"fetch": fetch, "handler": handler, "concurrency": 1, "ready": ready})
    running = asyncio.create_task(scaler.run())
    await asyncio.sleep(0.02)
    scaler.kill_worker()
    await scaler._drained.wait()
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert ran == ["late"]


async def test_nothing_is_taken_before_the_engine_is_ready() -> None:
    order: list[str] = []

    async def ready() -> None:
        await asyncio.sleep(0.05)
        order.append("ready")

    fetches = Fetches([job("a")])
    await run(fetches, lambda ids: order.extend(ids) or bool(ids), ready=ready)  # type: ignore[func-returns-value]
    assert order == ["ready", "a"]


async def test_an_engine_that_never_gets_ready_takes_nothing_and_can_be_stopped() -> None:
    async def ready() -> None:
        raise RuntimeError("no engine")

    fetches = Fetches([job("a")])
    began = time.monotonic()
    await run(fetches, lambda _: time.monotonic() - began > 0.05, ready=ready)
    assert fetches.asked == []
