"""The runpod SDK, as this worker uses it: what it reads from the environment, and the narrow changes to it.

Each change names its reason, applies to versions that were tested only, and leaves the SDK's own code in
place everywhere else. With any other version the stock SDK runs; the worker is complete without the
changes, only slower to take jobs and less careful when it stops.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import multiprocessing
import os
import signal
from collections.abc import Awaitable, Callable, MutableMapping
from importlib import metadata
from typing import Any, Protocol

from worker_vllm import children, installed
from worker_vllm.errors import ConfigurationError
from worker_vllm.serverless.delivery import Delivery
from worker_vllm.serverless.handler import Handler
from worker_vllm.serverless.intake import PromptIntake

TESTED_VERSIONS = frozenset({"1.12.0"})
"""The versions whose insides were read and that the contract tests run against."""

MINIMUM_VERSION = (1, 10, 1)
"""Before this the SDK writes every job, prompts included, to a file in the working directory, and a
worker restarted beside such a file never takes a job again."""

_LOG_LEVELS = ("NOTSET", "TRACE", "DEBUG", "INFO", "WARN", "ERROR")

logger = logging.getLogger(__name__)


def prepare(environ: MutableMapping[str, str]) -> None:
    """Set what the SDK reads from the environment, before it is imported; what the user has set stays.

    Raises ConfigurationError where the SDK could not work: too old, no platform to ask for jobs, or a log
    level it does not know (its import fails on that).
    """
    problems = []
    version = metadata.version("runpod")
    if installed.numbers(version) < MINIMUM_VERSION:
        problems.append(f"runpod {version} is installed, which writes prompts to disk; 1.12.0 is needed")
    if not environ.get("RUNPOD_WEBHOOK_GET_JOB"):
        problems.append(
            "RUNPOD_WEBHOOK_GET_JOB is not set, so there is no platform to take jobs from; RunPod sets it "
            "on its workers, and `worker-vllm local` runs a platform on this machine"
        )
    for name in ("RUNPOD_LOG_LEVEL", "RUNPOD_DEBUG_LEVEL"):
        if name in environ and environ[name].upper() not in _LOG_LEVELS:
            problems.append(f"{name}={environ[name]!r}: expected one of {', '.join(_LOG_LEVELS)}")
    if problems:
        raise ConfigurationError(problems)
    # The SDK's own default is DEBUG, at which it prints every input and output.
    if "RUNPOD_LOG_LEVEL" not in environ and "RUNPOD_DEBUG_LEVEL" not in environ:
        environ["RUNPOD_LOG_LEVEL"] = "INFO"
    elif environ.get("RUNPOD_LOG_LEVEL", environ.get("RUNPOD_DEBUG_LEVEL", "")).upper() in ("DEBUG", "TRACE"):
        logger.warning("the SDK's log level prints prompts and answers")
    # These checks create a CUDA context per GPU in this process and ask a public name server for a
    # connection; `checks` looks at the machine before the weights are loaded instead.
    environ.setdefault("RUNPOD_SKIP_AUTO_SYSTEM_CHECKS", "true")
    environ.setdefault("RUNPOD_SKIP_GPU_CHECK", "true")


class Serve(Protocol):
    """Runs the SDK's worker loop."""

    def __call__(
        self, handler: Handler, *, concurrency: Callable[[int], int], ready: Callable[[], Awaitable[None]]
    ) -> None:
        """Take and run jobs until a stop signal; returns when the last job has ended. In the main thread,
        with no loop running.

        Args:
            ready: awaited in the job loop before the first job is taken, where the changes are in place.
        """


def load(*, stock: bool = False) -> Serve:
    """Import the SDK (a second or more) and put the changes in place.

    Args:
        stock: leave the SDK as it is, whatever its version.
    """
    version = metadata.version("runpod")
    if stock or version not in TESTED_VERSIONS:
        logger.warning("runpod %s runs as it is; tested: %s", version, ", ".join(sorted(TESTED_VERSIONS)))
        runpod = importlib.import_module("runpod")
    else:
        runpod = _import_without_processor_name()
        _take_promptly()
        _deliver_surely()
        _tie_ping_to_this_process()
        _tell_ping_once_a_turn()
        _use_the_platforms_key()

    def serve(
        handler: Handler, *, concurrency: Callable[[int], int], ready: Callable[[], Awaitable[None]]
    ) -> None:
        runpod.serverless.start(
            {
                "handler": handler,
                "concurrency_modifier": concurrency,
                "return_aggregate_stream": True,
                "ready": ready,  # for PromptIntake; the SDK leaves keys alone that it does not know
            }
        )

    return serve


def _import_without_processor_name() -> Any:
    """The SDK asks a library for the processor's name when it is imported, for its debugger; that starts
    several programs and takes a second of every cold start. Told nothing, it goes by the name "unable to
    get"."""
    cpuinfo: Any = importlib.import_module("cpuinfo")
    ask, cpuinfo.get_cpu_info = cpuinfo.get_cpu_info, dict
    try:
        return importlib.import_module("runpod")
    finally:
        cpuinfo.get_cpu_info = ask


def _take_promptly() -> None:
    """See `intake`. The SDK looks JobScaler up by this name when it starts."""
    from runpod.serverless.modules import rp_scale

    if not issubclass(rp_scale.JobScaler, PromptIntake):
        rp_scale.JobScaler = type("PromptJobScaler", (PromptIntake, rp_scale.JobScaler), {})


def _deliver_surely() -> None:
    """See `delivery`. The SDK's job loop looks both functions up by these names at each call."""
    from runpod.serverless.modules import rp_http, rp_job

    has_chunk_url = rp_http.JOB_STREAM_URL_TEMPLATE.startswith("http")
    delivery = Delivery(rp_http.JOB_DONE_URL, rp_http.JOB_STREAM_URL if has_chunk_url else None)
    rp_job.send_result = delivery.send_result
    rp_job.stream_result = delivery.stream_result


def _tie_ping_to_this_process() -> None:
    """Let the ping process end with this one, however this one ends: left alone after a SIGKILL it goes
    on telling the platform that the worker runs its jobs. Also let go of what it inherits by the fork
    (the engine's sockets and pipes, whose ends would otherwise never be seen, and GPU devices)."""
    from runpod.serverless.modules import rp_ping

    if multiprocessing.get_start_method() != "fork":
        return  # nothing is inherited then, and a wrapped function could not be sent to the child
    parent = os.getpid()
    ping = rp_ping.Heartbeat.process_loop

    def process_loop(mirror: Any = None, test: bool = False) -> None:
        children.end_with_parent(parent)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # a terminal sends it to the whole group; the parent decides
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        ping(mirror, test)

    rp_ping.Heartbeat.process_loop = staticmethod(process_loop)


def _tell_ping_once_a_turn() -> None:
    """The SDK writes the ids of all running jobs for the ping process whenever one comes or goes: each of 256
    jobs that come together writes 256 ids, a third of a millisecond. Once for all of them is enough, since a
    ping goes out every few seconds."""
    from runpod.serverless.modules import worker_state

    tell = worker_state.JobsProgress._notify_mirror
    is_due = False

    def tell_now(jobs: Any) -> None:
        nonlocal is_due
        is_due = False
        tell(jobs)

    def tell_soon(jobs: Any) -> None:
        nonlocal is_due
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # while the SDK starts
            tell(jobs)
            return
        if not is_due:
            is_due = True
            loop.call_soon(tell_now, jobs)

    worker_state.JobsProgress._notify_mirror = tell_soon


def _use_the_platforms_key() -> None:
    """A key in `~/.runpod/config.toml` (a developer's machine, a mounted home) would take the place of
    the worker's own in every call but the ping."""
    from runpod.cli.groups.config import functions

    functions.CREDENTIAL_FILE = os.devnull + "/none"
