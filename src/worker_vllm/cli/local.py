"""`worker-vllm local`: a local RunPod with the worker behind it, on this machine."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import shlex
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_vllm.cli.local_session import Plan
    from worker_vllm.emulator.policy import Policy

DEFAULT_PORT = 8020
DEMO_MODEL = Path("models") / "smollm2-135m-instruct"
HUB_TESTS = Path(".runpod") / "tests.json"
EXIT_USAGE = 2

_SOURCE = Path(__file__).resolve().parents[2]

_EPILOG = """\
All state is in memory and goes with the process. Prints "ready http://HOST:PORT/v2/local" when every worker
has asked for its first job. The environment is passed on to the workers; RUNPOD_SKIP_AUTO_SYSTEM_CHECKS and
RUNPOD_SKIP_GPU_CHECK are set for them, since the SDK's own checks want a GPU and the internet. Each worker
runs in a fresh directory of its own.

exit codes:
  0    stopped by SIGINT or SIGTERM, or --once or --hub-test went well
  1    --once or --hub-test did not go well
  2    bad arguments, or the address cannot be used
  128+ stopped by that signal before it was ready
  else the worker's own, when it cannot start; its reason is the last line
"""


_OPTIONS: dict[str, dict[str, Any]] = {
    "--port": {
        "type": int,
        "help": f"port; 0 is any free one (default {DEFAULT_PORT}, or a free one when that is taken)",
    },
    "--host": {"default": "127.0.0.1", "help": "address to listen on (default 127.0.0.1)"},
    "--model": {
        "help": "MODEL_NAME for the worker: a folder or a Hugging Face name (default: the environment's)"
    },
    "--workers": {
        "type": int,
        "default": 1,
        "metavar": "N",
        "help": "number of workers (default 1); 0 serves workers started by hand",
    },
    "--rtt-ms": {
        "type": float,
        "default": 0.0,
        "metavar": "MS",
        "help": "round trip between worker and platform (live: about 100)",
    },
    "--api-key": {"metavar": "KEY", "help": "the only key that clients may use (default: any)"},
    "--demo": {
        "action": "store_true",
        "help": "once ready, send one OpenAI chat and one native job and show the answers",
    },
    "--once": {"action": "store_true", "help": "--demo, then end"},
    "--hub-test": {
        "nargs": "?",
        "const": "",
        "metavar": "FILE",
        "help": "run FILE's tests as the Hub's runner does, then end (default file: .runpod/tests.json)",
    },
    "--worker-command": {
        "metavar": "CMD",
        "help": "what to start as a worker (default: this package's worker)",
    },
    "--worker-log": {"metavar": "FILE", "help": "write the workers' output to FILE as well"},
    "--strict": {
        "action": "store_true",
        "help": "every leniency off: keys, limits and sizes as on the live service",
    },
    "--set": {
        "action": "append",
        "default": [],
        "metavar": "NAME=VALUE",
        "help": "replace one of the platform's choices, e.g. take_hold_s=5",
    },
    "--choices": {
        "action": "store_true",
        "help": "show all choices, each with its default and how well it is known",
    },
}


class UsageError(Exception):
    """Arguments that cannot be served; one line for the user."""


def add_parser(subparsers: Any) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "local",
        help="run a local RunPod platform with a worker behind it, on this machine",
        description="Run a local RunPod platform (queue API, OpenAI gateway) and its workers.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name, options in _OPTIONS.items():
        parser.add_argument(name, **options)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run the platform until it is told to stop; returns the exit code."""
    from worker_vllm.cli.local_session import serve

    if args.choices:
        _show_choices()
        return 0
    try:
        plan = make_plan(args, environ)
    except UsageError as error:
        print(f"worker-vllm local: {error}", file=sys.stderr, flush=True)
        return EXIT_USAGE
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        return runner.run(serve(plan))


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """uvloop where it is installed (vLLM brings it): a stream post costs the platform a quarter less."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def make_plan(args: argparse.Namespace, environ: Mapping[str, str]) -> Plan:
    """What the arguments and the environment ask for.

    Raises:
        UsageError: they cannot be served.
    """
    from worker_vllm.cli.local_session import Plan
    from worker_vllm.emulator.hub_test import HubFileError, read_hub_tests

    if args.workers < 0:
        raise UsageError(f"--workers {args.workers}: expected 0 or more")
    hub_tests = None
    environment = _without_relative_paths(environ)
    if args.hub_test is not None:
        try:
            hub_tests = read_hub_tests(
                _existing(args.hub_test) if args.hub_test else _project_file(HUB_TESTS)
            )
        except HubFileError as error:
            raise UsageError(f"--hub-test: {error}") from None
        # The file's variables stand for the Hub's; what this machine sets goes before them.
        environment = {**hub_tests.environment, **environment}
    own_worker = args.worker_command is None
    if args.model:
        environment["MODEL_NAME"] = _absolute(args.model)
    elif own_worker and args.workers and not environment.get("MODEL_NAME"):
        environment["MODEL_NAME"] = _demo_model()
    return Plan(
        host=args.host,
        port=DEFAULT_PORT if args.port is None else args.port,
        any_port_will_do=args.port is None,
        policy=_policy(args),
        api_key=args.api_key,
        command=worker_command() if own_worker else tuple(shlex.split(args.worker_command)),
        environment=environment,
        workers=args.workers,
        demo=(args.demo or args.once) and hub_tests is None,
        once=args.once,
        hub_tests=hub_tests,
        log_path=Path(args.worker_log).absolute() if args.worker_log else None,
    )


def worker_command() -> tuple[str, ...]:
    """How this package's own worker is started: as in the container, from a checkout; else as a module."""
    handler = _SOURCE / "handler.py"
    if handler.is_file():
        return (sys.executable, str(handler))
    return (sys.executable, "-m", "worker_vllm", "run")


def _policy(args: argparse.Namespace) -> Policy:
    from worker_vllm.emulator.policy import Policy, PolicyError

    policy = Policy().strict() if args.strict else Policy()
    policy = dataclasses.replace(policy, worker_rtt_ms=args.rtt_ms)
    if args.hub_test is not None:
        # For the Hub's runner the end of the worker's process is the end of the test.
        policy = dataclasses.replace(policy, restart_limit=0)
    try:
        return policy.with_settings(args.set)
    except PolicyError as error:
        raise UsageError(f"--set {error}") from None


def _show_choices() -> None:
    from worker_vllm.emulator.policy import Policy

    for row in Policy.describe():
        print(row)


def _demo_model() -> str:
    path = _project_file(DEMO_MODEL)
    if not path.is_dir():
        raise UsageError(
            "no model: give --model DIR_OR_NAME or set MODEL_NAME (`make run` prepares a demo model)"
        )
    return str(path.resolve())


def _project_file(name: Path) -> Path:
    """A file of the working directory, else of the checkout this package is run from."""
    return name if name.exists() else _SOURCE.parent / name


def _existing(name: str) -> Path:
    return Path(name)


def _absolute(name: str) -> str:
    """A folder's absolute path; a Hugging Face name stays as it is."""
    return str(Path(name).resolve()) if Path(name).is_dir() else name


def _without_relative_paths(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment for workers, which run in another directory: a model folder and the module path are
    resolved.
    """
    environment = dict(environ)
    if model := environment.get("MODEL_NAME"):
        environment["MODEL_NAME"] = _absolute(model)
    if module_path := environment.get("PYTHONPATH"):
        environment["PYTHONPATH"] = ":".join(
            str(Path(part).absolute()) for part in module_path.split(":") if part
        )
    return environment
