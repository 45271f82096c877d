"""One run of `worker-vllm local`: platform and workers up, ready, what was asked for, everything down."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from worker_vllm.cli import demo
from worker_vllm.emulator.hub_test import HubTests, run_hub_test
from worker_vllm.emulator.policy import Policy
from worker_vllm.emulator.processes import die_with_parent
from worker_vllm.emulator.server import Platform
from worker_vllm.emulator.worker_env import no_proxy
from worker_vllm.emulator.worker_output import WorkerOutput
from worker_vllm.emulator.worker_pool import WorkerFailedError, WorkerPool

EXIT_FAILED = 1
EXIT_USAGE = 2
COMMAND_CLOSED = "command closed"
"""What the Hub's runner says when the worker's process ends during a test."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What a run is to be; see the verb's options."""

    host: str
    port: int
    any_port_will_do: bool
    policy: Policy
    api_key: str | None
    command: tuple[str, ...]
    environment: Mapping[str, str]
    workers: int
    demo: bool
    once: bool
    hub_tests: HubTests | None
    log_path: Path | None


async def serve(plan: Plan) -> int:
    """Run the plan to its end or to a signal; nothing that was started is left. Returns the exit code."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="platform | %(message)s")
    async with AsyncExitStack() as exits:
        stop = exits.enter_context(_StopSignals())
        try:
            platform = await open_platform(plan, exits)
            output = _open_output(plan, exits)
        except OSError as error:
            _say(f"worker-vllm local: {error.strerror or error} ({plan.host}:{plan.port})", sys.stderr)
            return EXIT_USAGE
        pool = WorkerPool(
            platform,
            plan.command,
            plan.environment,
            count=plan.workers,
            on_line=output.line,
            hub_form=plan.hub_tests is not None,
        )
        try:
            async with pool:
                stop.again = pool.kill
                return await _until_stopped(_Session(plan, platform, pool), pool, stop)
        except WorkerFailedError as error:
            failure = error
    # After everything has ended, so that the reason is the last line whatever the others still wrote.
    if plan.hub_tests is not None:
        _say(f"FAIL: {COMMAND_CLOSED}")
    _say(failure.reason, sys.stderr)
    return failure.exit_code


class _Session:
    """What happens between the workers' start and the end."""

    def __init__(self, plan: Plan, platform: Platform, pool: WorkerPool) -> None:
        self._plan = plan
        self._platform = platform
        self._pool = pool
        self.ready = False

    async def run(self) -> int:
        plan = self._plan
        async with AsyncExitStack() as exits:
            client = None
            if plan.demo:
                # Started early: its imports take seconds, which pass while the worker starts.
                client = await exits.enter_async_context(_DemoClient(plan, self._platform))
            await self._pool.ready()
            self.ready = True
            _say(f"ready {self._platform.url}")
            if plan.hub_tests is not None:
                return await self._hub(plan.hub_tests)
            if client is not None:
                code = await client.show()
                if plan.once:
                    return code
                _say(demo.how_to_call(self._platform.url, plan.api_key))
                _say("serving until Ctrl-C")
            await asyncio.Event().wait()
            return 0

    async def _hub(self, hub_tests: HubTests) -> int:
        passed = 0
        for test in hub_tests.tests:
            result = await run_hub_test(self._platform.url, test, self._plan.api_key)
            passed += result.passed
            _say(f"{'PASS' if result.passed else 'FAIL'} {result.name}: {result.detail} {result.output}")
        _say(f"{passed} of {len(hub_tests.tests)} hub tests passed")
        return 0 if passed == len(hub_tests.tests) else EXIT_FAILED


class _DemoClient:
    """The demonstration requests, in a process of their own: two client libraries must not slow the
    server's loop.
    """

    def __init__(self, plan: Plan, platform: Platform) -> None:
        self._url = platform.url
        self._environment = {**os.environ, **no_proxy(os.environ), demo.KEY_VARIABLE: plan.api_key or "local"}
        self._process: asyncio.subprocess.Process | None = None

    async def __aenter__(self) -> _DemoClient:
        # -P: the script's own folder must not come before the libraries it imports.
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            demo.__file__,
            self._url,
            stdin=asyncio.subprocess.PIPE,
            env=self._environment,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )
        return self

    async def show(self) -> int:
        """Let it send its requests; its exit code."""
        assert self._process is not None
        await self._process.communicate(demo.GO)
        return EXIT_FAILED if self._process.returncode else 0

    async def __aexit__(self, *_: object) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.communicate()


class _StopSignals:
    """SIGINT, SIGTERM and a closed terminal (SIGHUP, unless nohup) as something to wait for.

    Attributes:
        number: the first signal that came; None before.
        again: called at each further one.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self.again: Callable[[], None] = _nothing
        self._came = asyncio.Event()
        self._numbers: list[signal.Signals] = []

    def __enter__(self) -> _StopSignals:
        self._numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
            self._numbers.append(signal.SIGHUP)
        for number in self._numbers:
            asyncio.get_running_loop().add_signal_handler(number, self._handle, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._came.wait()

    def _handle(self, number: int) -> None:
        if self.number is None:
            _say("platform | stopping; a second signal kills the workers", sys.stderr)
            self.number = number
            self._came.set()
        else:
            self.again()


async def _until_stopped(session: _Session, pool: WorkerPool, stop: _StopSignals) -> int:
    """Run the session until it is through, a signal comes, or the workers are lost."""
    run, stopped = asyncio.create_task(session.run()), asyncio.create_task(stop.wait())
    try:
        waited: list[asyncio.Future[Any]] = [run, stopped, pool.failed]
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if run.done():
            return await run
        if pool.failed.done():
            await pool.failed
        return 0 if session.ready else 128 + int(stop.number or 0)
    finally:
        run.cancel()
        stopped.cancel()
        await asyncio.gather(run, stopped, return_exceptions=True)


async def open_platform(plan: Plan, exits: AsyncExitStack) -> Platform:
    """The platform, listening; on another port when the default one is taken.

    Raises:
        OSError: the address cannot be used.
    """
    for port in (plan.port, 0) if plan.any_port_will_do else (plan.port,):
        platform = Platform(plan.policy, api_key=plan.api_key, host=plan.host, port=port)
        try:
            return await exits.enter_async_context(platform)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port == 0 or not plan.any_port_will_do:
                raise
    raise AssertionError("unreachable: a free port is always tried last")


def _open_output(plan: Plan, exits: AsyncExitStack) -> WorkerOutput:
    """Where the workers' lines go. A demonstration shows few of them, so all go to a file, which stays."""
    if plan.log_path is not None:
        log: TextIO | None = plan.log_path.open("w", encoding="utf-8")
    elif plan.demo:
        descriptor, name = tempfile.mkstemp(prefix="worker-vllm-", suffix=".log")
        log = os.fdopen(descriptor, "w", encoding="utf-8")
        _say(f"the worker's whole output: {name}")
    else:
        log = None
    if log is not None:
        exits.callback(log.close)
    return WorkerOutput(sys.stderr, log, brief=plan.demo)


def _say(text: str, where: TextIO | None = None) -> None:
    print(text, file=where or sys.stdout, flush=True)


def _nothing() -> None:
    """A second signal before there is anything to hasten."""
