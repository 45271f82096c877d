"""Bring the worker into service and out of it again, in the main thread.

The order matters. The machine is looked at first, because loading weights takes minutes. The engine is
built before the SDK starts its loop, because AsyncLLM belongs to the one loop that uses it; what is bound
to that loop follows there (see `service`). The SDK is imported after the engine's process has been
started, since a fork while another thread imports can hang.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import signal
import threading
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from worker_vllm import children, scratch, settings
from worker_vllm.errors import StartupFailure
from worker_vllm.phases import Phases
from worker_vllm.serverless import checks, health, log, sdk, service, sign
from worker_vllm.serverless.handler import Engine, make_handler

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration
    from worker_vllm.settings import WorkerSettings

MAX_DEFAULT_CONCURRENCY = 512
"""The most jobs that are taken at once unless MAX_CONCURRENCY says otherwise: a worker that takes more
than it can run together starves its neighbours, since RunPod scales up by what is left in the queue."""

ANSWERS_AT_ONCE = 8
"""Jobs refused at once by a worker without an engine."""

ENGINE_END_SECONDS = 4.0
"""How long the engine's processes may take to end; vLLM itself gives them five seconds."""

logger = logging.getLogger(__name__)


class Host(service.Host, Protocol):
    """The engine's owner, as start-up sees it."""

    @property
    def capacity(self) -> int:
        """How many jobs the engine can run together."""

    def stop(self) -> None:
        """End the engine. Synchronous and repeatable."""


@dataclass(frozen=True)
class Engines:
    """A started engine, and what answers the two kinds of jobs with it."""

    host: Host
    native: Engine
    openai: Engine


def start_engines(configuration: Configuration, environ: MutableMapping[str, str]) -> Engines:
    """Build vLLM's engine; blocks until the model is loaded. The caller stops the host.

    Args:
        environ: what the engine's processes inherit.

    Raises StartupFailure.
    """
    from worker_vllm.engine.lifecycle import EngineHost
    from worker_vllm.engine.native import vLLMEngine
    from worker_vllm.engine.openai import OpenAIvLLMEngine

    host = EngineHost.start(configuration, environ)
    return Engines(host, vLLMEngine(host, configuration.worker), OpenAIvLLMEngine(host, configuration.worker))


def bring_model(configuration: Configuration, environ: Mapping[str, str], phases: Phases) -> Configuration:
    """Find the model and all that was named with it, download what is not here, and put paths in the place of
    names. What cannot work is said before that takes its time.

    Raises StartupFailure.
    """
    from worker_vllm import doctor, models

    with phases.phase("resolve the model"):
        resolution = models.resolve(configuration, environ)
        logger.info("%s", resolution.in_words())
    with phases.phase("examine model and GPUs"):
        diagnosis = doctor.before_start(configuration, resolution.facts, environ)
        if expected := diagnosis.in_one_line():
            logger.info("%s", expected)
        for finding in diagnosis.of("warning"):
            logger.warning("%s", finding.in_one_line())
    if resolution.downloads:
        with phases.phase("download the model"):
            resolution.fetch()
    return resolution.placed(configuration, environ)


def run(
    configuration: Configuration,
    environ: MutableMapping[str, str],
    start: Callable[[Configuration, MutableMapping[str, str]], Engines] = start_engines,
    bring: Callable[[Configuration, Mapping[str, str], Phases], Configuration] = bring_model,
) -> int:
    """Run the worker until it is told to stop or its engine dies; returns the exit code (see `health`).

    Args:
        environ: the process's environment; what the SDK reads from it is added.
        start: makes the engines; tests put scripted ones in their place.
        bring: brings the model; engines by script need none.

    Raises:
        StartupFailure: the worker could not come into service.
    """
    configuration.apply_environment(environ)
    log.configure(configuration.worker.log_format, configuration.worker.log_level)
    logger.info("vLLM's arguments: %s", configuration.summary())
    for warning in configuration.warnings:
        logger.warning("%s", warning)
    sdk.prepare(environ)
    health.adopt_orphans()
    signs = sign.Sign(configuration.worker.worker_state_file)
    phases = Phases(signs.starting)
    phases.passed("start Python and read the settings")
    with phases.phase("check the machine"):
        for warning in checks.check_machine():
            logger.warning("%s", warning)
    with _stop_signals_end_the_process(lambda: health.EXIT_STOPPED):
        configuration = bring(configuration, environ, phases)
        configuration.apply_environment(environ)
        with phases.phase("start the engine"):
            engines = _start(configuration, environ, start)
        return _serve(configuration.worker, engines, phases, signs)


def _start(
    configuration: Configuration,
    environ: MutableMapping[str, str],
    start: Callable[[Configuration, MutableMapping[str, str]], Engines],
) -> Engines:
    # the engine's processes inherit the environment as it is while they are started
    with configuration.secrets_withheld(environ), scratch.in_use(environ), children.tied():
        try:
            return start(configuration, environ)
        except StartupFailure:
            health.end_children()
            health.end_resource_tracker()  # what it says about the engine's remains comes before the summary
            raise


def stays_up(failure: StartupFailure, environ: Mapping[str, str]) -> bool:
    """Whether STARTUP_FAILURE=answer applies: to a fault that no restart can mend, on a deployed worker.
    A platform on this machine (`worker-vllm local`, the Hub's test runner) is there to see the exit."""
    if not failure.permanent or settings.read(environ).settings.startup_failure != "answer":
        return False
    host = urlsplit(environ.get("RUNPOD_WEBHOOK_GET_JOB", "")).hostname
    return host is not None and host not in ("localhost", "127.0.0.1", "0.0.0.0", "::1")


def answer(failure: StartupFailure, environ: MutableMapping[str, str]) -> int:
    """Stay up without an engine and fail each job with the reason, until told to stop; returns the exit
    code."""
    worker = settings.read(environ).settings
    log.configure(worker.log_format, worker.log_level)  # the configuration may have failed before `run` did
    reason = failure.in_one_line()
    logger.error("the worker cannot start and answers every job with the reason: %s", reason)
    error = StartupFailure(f"the worker cannot start: {reason}").to_json()

    async def handler(job: dict[str, Any]) -> AsyncGenerator[Any, None]:
        logger.info("job %s refused", log.one_line(job.get("id"), log.MAX_ID_LENGTH))
        yield {"error": error}

    async def ready() -> None:
        return

    sign.Sign(worker.worker_state_file).refusing(reason)
    sdk.prepare(environ)
    sdk.load()(handler, concurrency=lambda _: ANSWERS_AT_ONCE, ready=ready)
    return health.EXIT_STOPPED


def _serve(worker: WorkerSettings, engines: Engines, phases: Phases, signs: sign.Sign) -> int:
    in_service = service.Service(
        engines.host,
        engines.native,
        engines.openai,
        capacity=worker.max_concurrency or min(engines.host.capacity, MAX_DEFAULT_CONCURRENCY),
        grace_seconds=worker.shutdown_grace_s,
        stall_seconds=worker.engine_stall_s,
        request_timeout_seconds=worker.request_timeout_s,
        first_token_seconds=worker.first_token_timeout_s,
        errors_as_body=worker.openai_errors == "body",
        raw_openai_output=worker.raw_openai_output,
        phases=phases,
        sign=signs,
    )
    try:
        with phases.phase("load the SDK"):
            serve = sdk.load()
        _use_uvloop()
        serve(make_handler(in_service), concurrency=in_service.concurrency, ready=in_service.ready)
    finally:
        # The SDK's handlers talk to a loop that has ended.
        with _stop_signals_end_the_process(lambda: in_service.exit_code):
            _end(engines.host, is_dead=in_service.exit_code == health.EXIT_ENGINE_DEAD)
        in_service.ended()
    if in_service.startup_failure is not None:
        raise in_service.startup_failure
    return in_service.exit_code


def _end(host: Host, *, is_dead: bool) -> None:
    """End the engine. One that hangs is killed here: vLLM, which waits for it longer, kills the resource
    trackers of its processes along with them, and shared memory stays behind."""
    patience = threading.Timer(ENGINE_END_SECONDS, health.end_children)
    patience.daemon = True
    patience.start()
    try:
        if is_dead:
            health.end_children()
        host.stop()
        health.end_children()
    finally:
        patience.cancel()


def _use_uvloop() -> None:
    """Let the loop that the SDK makes be uvloop's, as `vllm serve` does."""
    try:
        policy = importlib.import_module("uvloop").EventLoopPolicy()
    except ImportError:
        logger.warning("uvloop is not installed; the front end is slower without it")
        return
    asyncio.set_event_loop_policy(policy)


@contextmanager
def _stop_signals_end_the_process(exit_code: Callable[[], int]) -> Iterator[None]:
    """In the block a stop signal ends the process and its children at once, unless another handler is put
    in place: the SDK's own is, while jobs are taken. Nothing is lost, since no job is here before or after
    that; and unwinding, as an exception would, can wait for minutes in vLLM for an engine that is half up."""

    def end(*_: object) -> None:
        os.write(2, b"told to stop: ending at once\n")  # a logger may be in use by what this interrupts
        health.exit_now(exit_code())

    previous = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
