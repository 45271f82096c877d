"""The command `worker-vllm`: one file per verb, and only the chosen verb's file is imported.

This is also the outermost edge of the process: every start-up failure becomes one summary line, printed
last, and an exit code (see `errors.StartupFailure`).
"""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import MutableMapping, Sequence
from types import ModuleType

from worker_vllm import installed
from worker_vllm.errors import StartupFailure

VERBS = {
    "run": "run the RunPod Serverless worker (what the container starts)",
    "local": "run a local RunPod platform with a worker behind it, on this machine",
    "bake": "put a model into an image or onto a volume",
    "settings": "show the effective configuration, each value with its source",
    "doctor": "say what will go wrong with a model on some GPUs, in seconds",
    "health": "tell whether the worker here serves, for a container's health check",
    "bench": "compare workers, the raw engine and vLLM's server under the same load",
}

EXIT_BUG = 70
"""Exit code when the worker itself is at fault: an exception nobody foresaw (BSD's EX_SOFTWARE)."""

logger = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None, environ: MutableMapping[str, str] | None = None) -> int:
    """Run one verb and return the process's exit code.

    Args:
        argv: the arguments after the program's name; None takes the process's own.
        environ: the environment; None takes the process's own. The verbs that start vLLM or the SDK write
            to it what those read from it.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    environment: MutableMapping[str, str] = os.environ if environ is None else environ
    try:
        verb, namespace = _parse(arguments)
        return int(verb.run(namespace, environment))
    except StartupFailure as failure:
        _report(failure)
        return failure.exit_code
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        logger.exception("unexpected error")
        print(
            f"worker-vllm failed: {type(error).__name__} (a fault of the worker; see above)", file=sys.stderr
        )
        return EXIT_BUG


def _parse(arguments: list[str]) -> tuple[ModuleType, argparse.Namespace]:
    chosen = next((argument for argument in arguments if not argument.startswith("-")), None)
    parser = argparse.ArgumentParser(
        prog="worker-vllm",
        description="RunPod Serverless worker for vLLM. Its settings are environment variables.",
        epilog="`worker-vllm VERB --help` explains a verb.",
    )
    parser.add_argument(
        "--version", action=_ShowVersions, help="show the versions of the worker and what it uses"
    )
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    module: ModuleType | None = None
    for name, summary in VERBS.items():
        if name == chosen:
            module = importlib.import_module(f"worker_vllm.cli.{name}")
            module.add_parser(subparsers)
        else:
            subparsers.add_parser(name, help=summary)
    namespace, unknown = parser.parse_known_args(arguments)
    if module is None:
        parser.error("which verb?")
    if unknown and not getattr(module, "IGNORES_UNKNOWN_ARGUMENTS", False):
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    return module, namespace


class _ShowVersions(argparse.Action):
    """Like argparse's own version action, but looks the versions up only when asked."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        for name, version in installed.versions().items():
            print(f"{name} {version}")
        parser.exit(0)


def _report(failure: StartupFailure) -> None:
    """Details first, then one line that says it all: logs are read from the end, and `worker-vllm local`
    and the platform show the last line."""
    sys.stdout.flush()
    if "\n" in failure.message:
        print(failure.message, file=sys.stderr)
    reason = failure.in_one_line()
    print(f"worker-vllm cannot start (exit code {failure.exit_code}): {reason}", file=sys.stderr, flush=True)
