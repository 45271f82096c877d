"""A local platform with one worker, which is started again whenever it ends, and the means to end it."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.chaos import remains
from tests.chaos.cases import Case, Target, read
from tests.chaos.tap import Tap
from worker_vllm.emulator.job_queue import JobQueue
from worker_vllm.emulator.policy import Policy
from worker_vllm.emulator.server import Platform
from worker_vllm.emulator.worker_pool import WorkerExit, WorkerPool
from worker_vllm.emulator.worker_registry import Phase

WORKER = "worker-0"
START_SECONDS = 180.0
VICTIMS = {"engine": "EngineCore", "executor": "VLLM::Worker"}
"""What the processes below the worker call themselves: the scheduler, and the one that holds the model."""
PAUSE_BEYOND_STALL_SECONDS = 1.0
LOST_AFTER_SECONDS = 9.0

POLICY = Policy(
    execution_timeout_ms=60_000,
    min_execution_timeout_ms=500,
    take_hold_s=2.0,
    stop_hold_s=1.0,
    ping_interval_ms=1000,
    lost_after_s=LOST_AFTER_SECONDS,
    lost_retries=3,
    send_policy=True,
    stop_again_s=2.0,
    restart_delay_s=0.1,
    restart_max_delay_s=0.1,
    restart_limit=10_000,
)


@dataclass
class Incident:
    """One way in which the worker was ended, or paused.

    Attributes:
        since, until: from the signal to the process's end, or to the end of the pause (monotonic seconds).
        running: ids of the jobs that it had.
        exit: how the process ended; None for a pause.
        back_seconds: from the end until the worker took jobs again.
    """

    name: str
    since: float
    running: tuple[str, ...]
    until: float = 0.0
    exit: WorkerExit | None = None
    back_seconds: float = 0.0

    @property
    def window(self) -> tuple[float, float]:
        return self.since, self.until or time.monotonic()


@dataclass
class Arena:
    """See `arena`.

    Attributes:
        log: the worker's lines, each with the time of its arrival.
        incidents: what was done to it.
        remains: after the end, what was left on the machine.
    """

    target: Target
    platform: Platform
    pool: WorkerPool
    session: aiohttp.ClientSession
    tap: Tap
    home: Path
    log: list[tuple[float, str]] = field(default_factory=list)
    incidents: list[Incident] = field(default_factory=list)
    remains: list[str] = field(default_factory=list)
    shared_memory: set[str] = field(default_factory=set)

    @property
    def queue(self) -> JobQueue:
        return self.platform.queue

    @property
    def pid(self) -> int:
        """The worker's process id."""
        pid = self.pool.pid(WORKER)
        assert pid is not None
        return pid

    async def call(self, path: str, body: Any = None) -> dict[str, Any]:
        """POST to the platform, as a client."""
        async with self.session.post(f"{self.platform.url}/{path}", json=body or {}) as response:
            answer = await response.json()
            assert response.status == 200, (path, response.status, answer)
            return answer

    async def submit(self, job_input: Any, **policy: int) -> str:
        """Queue a job; its id."""
        body = {"input": job_input, **({"policy": policy} if policy else {})}
        return str((await self.call("run", body))["id"])

    async def answer(self, job_input: Any, seconds: float = 60.0) -> dict[str, Any]:
        """A job's state at its end."""
        job_id = await self.submit(job_input)
        assert await self.queue.get(job_id).wait_ended(seconds), self.last_words()
        return await self.call(f"status/{job_id}")

    async def text(self, case: Case) -> str:
        """The exact answer: asked alone, plainly, while nothing happens."""
        job = await self.answer(self.target.job_input(case, stream=False))
        assert job["status"] == "COMPLETED", job
        return read(job["output"]).text

    async def serving(self) -> None:
        """Wait until the worker takes jobs."""
        await eventually(
            lambda: self.platform.registry.get(WORKER).phase is Phase.SERVING, START_SECONDS, self.last_words
        )

    async def kill(self, name: str) -> Incident:
        """End the worker, or its engine, in one of a target's `kills`; returns once it serves again."""
        self._look_around()
        incident = self._begin(name)
        ended = len(self.pool.exits)
        victim, number = name.split()[:2]
        pid = remains.process_of(self.pid, VICTIMS[victim]) if victim in VICTIMS else self.pid
        os.kill(pid, getattr(signal, number))
        if name.endswith("twice"):
            await asyncio.sleep(0.3)
            os.kill(pid, getattr(signal, number))
        await eventually(lambda: len(self.pool.exits) > ended, 60.0, self.last_words)
        incident.until = time.monotonic()
        incident.exit = self.pool.exits[ended]
        await self.serving()
        incident.back_seconds = time.monotonic() - incident.until
        return incident

    async def pause(self, name: str) -> None:
        """Stop every process of the worker for longer than an engine may stand still, and let them go on."""
        incident = self._begin(name)
        below = remains.descendants(self.pid)
        for pid in (self.pid, *below):
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(self.target.stall_seconds + PAUSE_BEYOND_STALL_SECONDS)
        for pid in (*reversed(below), self.pid):
            os.kill(pid, signal.SIGCONT)
        incident.until = time.monotonic()

    def last_words(self) -> str:
        """The end of the worker's log, for a test that fails."""
        return "\n".join(line for _, line in self.log[-60:])

    def _begin(self, name: str) -> Incident:
        incident = Incident(name, time.monotonic(), tuple(self.tap.running(WORKER)))
        self.incidents.append(incident)
        return incident

    def _look_around(self) -> None:
        """Note what the worker has open; it may write nothing into its working directory."""
        family = [self.pid, *remains.descendants(self.pid)]
        self.shared_memory |= remains.shared_memory(family)
        found = remains.files_below(Path(f"/proc/{self.pid}/cwd/"))
        self.remains += [f"in the working directory: {name}" for name in found]


@asynccontextmanager
async def arena(
    target: Target, seed: int = 0, policy: Policy = POLICY, **variables: str
) -> AsyncIterator[Arena]:
    """A platform and a worker in service; once both are ended, `Arena.remains` says what was left."""
    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    mark = f"CHAOS_MARK={secrets.token_hex(8)}"
    log: list[tuple[float, str]] = []
    environment = {**target.environment(home), **variables, mark.partition("=")[0]: mark.partition("=")[2]}
    try:
        async with Platform(policy, fault_seed=seed) as platform, aiohttp.ClientSession() as session:
            tap = Tap(platform)
            pool = WorkerPool(
                platform,
                target.command,
                environment,
                on_line=lambda _, line: log.append((time.monotonic(), line)),
            )
            scene = Arena(target, platform, pool, session, tap, home, log)
            async with pool:
                await asyncio.wait_for(pool.ready(), START_SECONDS)
                yield scene
                scene._look_around()
        scene.remains += _left(scene, mark)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _left(scene: Arena, mark: str) -> list[str]:
    """What is there after the end of worker and platform."""
    left = remains.marked(mark)
    found = [f"process {pid}: {remains.command_line(pid)}" for pid in left]
    found += [f"shared memory: {name}" for name in scene.shared_memory & remains.existing_shared_memory()]
    found += [f"in TMPDIR: {name}" for name in remains.files_below(scene.home / "tmp")]
    return found + [f"listening port: {port}" for port in remains.listening_ports(left)]


async def eventually(
    happened: Callable[[], bool], seconds: float, explain: Callable[[], str] = lambda: ""
) -> None:
    """Wait until it has; fails with what `explain` says."""
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"it did not happen within {seconds} s\n{explain()}"
        await asyncio.sleep(0.01)
