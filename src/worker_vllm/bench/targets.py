"""What can be measured: a worker behind the local platform, the raw engine, `vllm serve`, any address.

Each target starts what it needs and says when its process began, so that all starts are measured in the same
way: from the process's birth to the first token in the client's hands.
"""

from __future__ import annotations

import contextlib
import json
import socket
import sys
import time
import urllib.error
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from worker_vllm.bench.clients import Clients, Seen, busy_share, offers
from worker_vllm.bench.engine_settings import SERVED_NAME, EngineSettings
from worker_vllm.bench.load import Endpoint
from worker_vllm.bench.process import Child
from worker_vllm.bench.startup import PhaseLog
from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.workload import Workload

READY_TIMEOUT_SECONDS = 900.0

_ENDPOINT = "local"


class TargetError(Exception):
    """A target that cannot be used as it was described."""


class Target(ABC):
    """One thing to measure. `start` before anything else, `stop` at the end; both may be called again in
    turn.

    Attributes:
        name: as the report shows it.
        child: the process that was started, None while there is none.
        phases: what the log of the present start told.
        environ: the environment that its processes get, before its own engine variables.
    """

    has_platform = False

    def __init__(self, name: str, environ: Mapping[str, str], logs: Path) -> None:
        self.name = name
        self.child: Child | None = None
        self.phases = PhaseLog()
        self.environ = dict(environ)
        self._logs = logs

    @abstractmethod
    def start(self) -> None:
        """Start it and wait until it takes requests. Raises ChildFailed when that does not come about."""

    @abstractmethod
    def run(self, clients: Clients, workload: Workload, round_number: int) -> Seen:
        """Put one round's load on it."""

    def accepts(self, workload: Workload) -> bool:
        """Whether it has the workload's route."""
        return True

    def born_at(self) -> float | None:
        """When the measured process began, in seconds since the epoch; None for what was not started here."""
        return None if self.child is None else self.child.started_at

    def stop(self) -> None:
        """End what `start` began. May be called again."""
        if self.child is not None:
            self.child.stop()
            self.child = None

    def _spawn(self, command: Sequence[str], extra: Mapping[str, str], *, talks: bool = False) -> Child:
        self.phases = PhaseLog()
        log = self._logs / f"{self.name}.log"
        self.child = Child(command, {**self.environ, **extra}, log, on_line=self._line, talks=talks)
        return self.child

    def _line(self, line: str) -> None:
        self.phases.read(line)


class HttpTarget(Target):
    """A target that is reached over HTTP.

    Attributes:
        endpoint: set by `start`.
    """

    endpoint: Endpoint

    def run(self, clients: Clients, workload: Workload, round_number: int) -> Seen:
        """Put one round's load on it, through the client processes."""
        return clients.run(self.endpoint, workload, round_number)

    def accepts(self, workload: Workload) -> bool:
        """Native jobs need an endpoint of the platform's kind."""
        return workload.route != "native" or self.endpoint.platform is not None


class AddressTarget(HttpTarget):
    """What runs already: an OpenAI base URL, or a RunPod endpoint (`https://…/v2/ID`)."""

    def __init__(self, name: str, url: str, *, model: str | None, key: str | None, logs: Path) -> None:
        super().__init__(name, {}, logs)
        self._url = url.rstrip("/")
        self._model = model
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def start(self) -> None:
        """Ask for the model's name where none was given."""
        is_platform = self._url.split("/")[-2:-1] == ["v2"]
        openai = f"{self._url}/openai/v1" if is_platform else self._url
        self.endpoint = Endpoint(
            openai=openai,
            platform=self._url if is_platform else None,
            model=self._model or first_model(openai, self._headers),
            headers=self._headers,
        )


class WorkerTarget(HttpTarget):
    """A worker command behind the local platform, with the real SDK between them.

    Args:
        command: starts the worker; None starts this repository's.
        platform_options: further arguments of `worker-vllm local`.
    """

    has_platform = True

    def __init__(
        self,
        name: str,
        command: str | None,
        engine: EngineSettings,
        environ: Mapping[str, str],
        logs: Path,
        *,
        platform_options: Sequence[str] = (),
    ) -> None:
        super().__init__(name, environ, logs)
        self._command = command
        self._engine = engine
        self.platform_options = list(platform_options)
        self._ready = False

    def start(self) -> None:
        """Start the platform, which starts the worker, and wait for the line that says it has taken its
        place."""
        port = free_port()
        base = f"http://127.0.0.1:{port}/v2/{_ENDPOINT}"
        command = [sys.executable, "-m", "worker_vllm", "local", "--port", str(port), *self.platform_options]
        if self._command is not None:
            command += ["--worker-command", self._command]
        self._ready = False
        child = self._spawn(command, self._engine.environment())
        child.wait_until(lambda: self._ready, "it was ready", READY_TIMEOUT_SECONDS)
        self.endpoint = Endpoint(openai=f"{base}/openai/v1", platform=base, model=SERVED_NAME)

    def born_at(self) -> float | None:
        """The birth of the worker, not of the platform that started it."""
        import psutil

        if self.child is None:
            return None
        with contextlib.suppress(psutil.NoSuchProcess):
            births = [child.create_time() for child in psutil.Process(self.child.pid).children()]
            if births:
                return min(births)
        return self.child.started_at

    def _line(self, line: str) -> None:
        super()._line(line)
        if line.startswith("ready http"):
            self._ready = True


class ServeTarget(HttpTarget):
    """`vllm serve` itself, with no platform and no SDK before it."""

    def __init__(self, name: str, engine: EngineSettings, environ: Mapping[str, str], logs: Path) -> None:
        super().__init__(name, environ, logs)
        self._engine = engine

    def start(self) -> None:
        """Start the server and wait until `/health` answers."""
        port = free_port()
        base = f"http://127.0.0.1:{port}"
        # Not `vllm serve`: it insists on a distribution called vllm, and the CPU build has another name.
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", self._engine.model]
        command += ["--host", "127.0.0.1", "--port", str(port), *self._engine.flags()]
        child = self._spawn(command, {})
        child.wait_until(lambda: answers(f"{base}/health"), "it was ready", READY_TIMEOUT_SECONDS)
        self.endpoint = Endpoint(openai=f"{base}/v1", model=SERVED_NAME)


class RawTarget(Target):
    """AsyncLLM alone, in one loop of one process (see `bench.raw_engine`)."""

    def __init__(self, name: str, engine: EngineSettings, environ: Mapping[str, str], logs: Path) -> None:
        super().__init__(name, environ, logs)
        self._engine = engine

    def start(self) -> None:
        """Start the process and wait for its engine."""
        child = self._spawn([sys.executable, "-m", "worker_vllm.bench.raw_engine"], {}, talks=True)
        child.ask({"engine": self._engine.fields()})

    def run(self, clients: Clients, workload: Workload, round_number: int) -> Seen:
        """Put one round's load on it, from inside its own process."""
        assert self.child is not None
        answer = self.child.ask(
            {
                "workload": workload.to_json(),
                "offers": [[offer.index, offer.at, offer.prompt] for offer in offers(workload, round_number)],
                "start": time.monotonic(),
                "concurrency": workload.concurrency,
            }
        )
        times = tuple(RequestTimes.from_json(one) for one in answer["times"])
        return Seen(times, busy=busy_share([answer["cpu_seconds"]], times))


def free_port() -> int:
    """A port of the loopback address that nothing uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with success."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bool(response.status < 400)
    except (urllib.error.URLError, OSError):
        return False


def first_model(openai: str, headers: Mapping[str, str]) -> str:
    """The first name that the model list of an OpenAI base URL holds. Raises TargetError when there is
    none."""
    request = urllib.request.Request(f"{openai}/models", headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=300) as response:
            return str(json.load(response)["data"][0]["id"])
    except (urllib.error.URLError, OSError, ValueError, LookupError, TypeError) as error:
        raise TargetError(f"{openai}/models names no model ({error}); give one with --model-name") from error
