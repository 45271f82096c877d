"""The service in the job loop: entering it, leaving it, hearing signals."""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from worker_vllm import errors
from worker_vllm.serverless import health, sign
from worker_vllm.serverless.service import Service
from worker_vllm.serverless.sign import Sign


class FakeHost:
    def __init__(self) -> None:
        self.errored = False
        self.unfinished_requests = 0
        self.step_count = 0
        self.readies = 0
        self.closes = 0
        self.failure: Exception | None = None

    def has_begun(self, record: Any) -> bool:
        return False

    async def cut_short(self, record: Any) -> bool:
        return False

    async def ready(self) -> None:
        self.readies += 1
        await asyncio.sleep(0.01)
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        self.closes += 1


class NoEngine:
    def generate(self, job: Any, request_id: str) -> AsyncGenerator[Any, None]:
        raise NotImplementedError


class Exits:
    """Stands for the last resort; notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def later(self, seconds: float, exit_code: Callable[[], int]) -> threading.Timer:
        self.asked.append((seconds, exit_code()))
        return threading.Timer(3600, lambda: None)


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The signals that the SDK's own handler would have heard."""
    numbers: list[int] = []
    previous = {n: signal.signal(n, lambda n, _: numbers.append(n)) for n in (signal.SIGTERM, signal.SIGINT)}
    yield numbers
    for number, handler in previous.items():
        signal.signal(number, handler)


def service(host: FakeHost, exits: Exits, grace_seconds: float = 0.2) -> Service:
    engine = NoEngine()
    return Service(host, engine, engine, capacity=7, grace_seconds=grace_seconds, exit_later=exits.later)


class Job:
    """A job that waits for ever in the service."""

    def __init__(self, of: Service) -> None:
        self.failure: errors.WorkerError | None = None
        self.task = asyncio.get_running_loop().create_task(self._run(of))

    async def _run(self, of: Service) -> None:
        async def stuck() -> AsyncGenerator[Any, None]:
            await asyncio.Event().wait()
            yield

        try:
            await of.jobs.open(stuck()).next()
        except errors.WorkerError as error:
            self.failure = error


async def test_the_first_call_for_concurrency_makes_the_engine_ready_once(heard: list[int]) -> None:
    host = FakeHost()
    worker = service(host, Exits())
    assert [worker.concurrency(1), worker.concurrency(7)] == [7, 7]
    await asyncio.gather(worker.ready(), worker.ready())
    assert host.readies == 1


async def test_a_cancelled_job_does_not_stop_the_others_from_becoming_ready(heard: list[int]) -> None:
    worker = service(FakeHost(), Exits())
    waiting = asyncio.get_running_loop().create_task(worker.ready())
    await asyncio.sleep(0)
    waiting.cancel()
    await worker.ready()


def test_the_host_is_closed_when_the_loop_ends(heard: list[int]) -> None:
    host = FakeHost()

    async def life() -> None:
        await service(host, Exits()).ready()

    asyncio.run(life())
    assert host.closes == 1


async def test_an_engine_that_cannot_be_made_ready_ends_the_worker_with_its_code(heard: list[int]) -> None:
    host, exits = FakeHost(), Exits()
    host.failure = errors.EngineStartError("no such adapter")
    worker = service(host, exits)
    worker.concurrency(1)
    job = Job(worker)
    with pytest.raises(errors.EngineStartError):
        await worker.ready()
    await job.task
    assert worker.startup_failure is host.failure
    assert worker.exit_code == 3
    assert heard == [signal.SIGTERM], "the SDK was told to stop"
    assert isinstance(job.failure, errors.RetryableError)
    assert exits.asked[0][1] == 3


async def test_a_dead_engine_is_noticed_without_any_request(
    heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health.watch, "__defaults__", (0.01,))
    host, exits = FakeHost(), Exits()
    worker = service(host, exits)
    await worker.ready()
    job = Job(worker)
    await asyncio.sleep(0.02)
    host.errored = True
    await asyncio.wait_for(job.task, 1)
    assert isinstance(job.failure, errors.EngineDeadError)
    assert worker.exit_code == health.EXIT_ENGINE_DEAD
    assert heard == [signal.SIGTERM]
    assert exits.asked[0][0] <= 9


async def test_an_engine_that_holds_requests_and_makes_no_step_counts_as_dead(
    heard: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health.watch, "__defaults__", (0.01,))
    host, engine = FakeHost(), NoEngine()
    worker = Service(
        host, engine, engine, capacity=1, grace_seconds=1, stall_seconds=0.05, exit_later=Exits().later
    )
    await worker.ready()
    await asyncio.sleep(0.1)
    assert worker.exit_code == health.EXIT_STOPPED, "an idle engine makes no steps either"
    host.unfinished_requests = 1
    job = Job(worker)
    await asyncio.wait_for(job.task, 2)
    assert isinstance(job.failure, errors.EngineDeadError)
    assert "hangs" in job.failure.message


async def test_a_jobs_report_of_a_dead_engine_is_enough_and_counts_once(heard: list[int]) -> None:
    worker = service(FakeHost(), Exits())
    await worker.ready()
    worker.report(errors.EngineDeadError("gone"))
    worker.report(errors.EngineDeadError("gone"))
    assert worker.exit_code == health.EXIT_ENGINE_DEAD
    assert heard == [signal.SIGTERM]


async def test_a_stop_signal_lets_jobs_go_on_for_the_grace_period_only(heard: list[int]) -> None:
    exits = Exits()
    worker = service(FakeHost(), exits)
    await worker.ready()
    job = Job(worker)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0.05)
    assert heard == [signal.SIGTERM], "the SDK's own handler is called as well"
    assert job.failure is None
    await asyncio.wait_for(job.task, 1)
    assert isinstance(job.failure, errors.ShuttingDownError)
    assert (worker.exit_code, exits.asked[0][1]) == (health.EXIT_STOPPED, health.EXIT_CUT_OFF)


async def test_a_second_signal_ends_the_grace_period(heard: list[int]) -> None:
    exits = Exits()
    worker = service(FakeHost(), exits, grace_seconds=60)
    await worker.ready()
    job = Job(worker)
    signal.raise_signal(signal.SIGTERM)
    await asyncio.sleep(0)
    for _ in range(2):  # a third one changes nothing
        signal.raise_signal(signal.SIGINT)
    await asyncio.wait_for(job.task, 1)
    assert isinstance(job.failure, errors.ShuttingDownError)
    assert exits.asked == [(60 + 19.0, 5), (19.0, 5)], "the last resort comes earlier, too"


def test_a_signal_after_the_loops_end_is_harmless(heard: list[int]) -> None:
    asyncio.run(service(FakeHost(), Exits()).ready())
    signal.raise_signal(signal.SIGTERM)
    assert heard == [signal.SIGTERM]


async def test_a_task_of_its_own_that_fails_takes_the_worker_out_of_service(
    heard: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    host = FakeHost()
    host.failure = ZeroDivisionError("a bug")
    worker = service(host, Exits())
    with pytest.raises(ZeroDivisionError):
        await worker.ready()
    await asyncio.sleep(0)
    assert worker.exit_code == health.EXIT_ENGINE_DEAD
    assert any(record.levelno == logging.ERROR and record.exc_info for record in caplog.records)


async def test_the_service_tells_a_health_check_when_it_serves_and_when_it_leaves(
    heard: list[int], tmp_path: Path
) -> None:
    engine, path = NoEngine(), tmp_path / "state"
    worker = Service(
        FakeHost(),
        engine,
        engine,
        capacity=1,
        grace_seconds=1,
        sign=Sign(str(path)),
        exit_later=Exits().later,
    )
    worker.concurrency(1)
    assert not sign.read(path)[0]
    await worker.ready()
    assert sign.read(path)[0]
    worker.report(errors.EngineDeadError("the engine died"))
    assert sign.read(path) == (False, "leaving: the engine died, for 0 s")
