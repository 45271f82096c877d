"""`worker-vllm run`: the RunPod worker itself."""

from __future__ import annotations

import argparse
from collections.abc import MutableMapping
from typing import Any

from worker_vllm.errors import StartupFailure

IGNORES_UNKNOWN_ARGUMENTS = True
"""Arguments after this verb are the SDK's own (`--rp_log_level`, …), which reads them from the process
itself; and old templates pass start commands that mean nothing here."""

_DESCRIPTION = """\
Run the RunPod Serverless worker. It is set by environment variables alone (see `worker-vllm settings`);
RunPod adds RUNPOD_WEBHOOK_GET_JOB and its relatives. To try it without RunPod: `worker-vllm local`.
Arguments of the runpod SDK are passed on to it, any other is ignored.
"""

_EPILOG = """\
exit codes:
  0   stopped by SIGTERM or SIGINT, every job ended
  2   bad configuration (a restart cannot mend it)
  3   the engine could not be built, or a check of the machine failed
  4   the engine died while serving
  5   stopping took too long and was cut off
  70  a fault of the worker itself
"""


def add_parser(subparsers: Any) -> None:
    """Add the verb's parser."""
    subparsers.add_parser(
        "run",
        help="run the RunPod Serverless worker (what the container starts)",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )


def run(args: argparse.Namespace, environ: MutableMapping[str, str]) -> int:
    """Run the worker until it is told to stop; returns the exit code.

    Raises StartupFailure when it cannot come into service, unless STARTUP_FAILURE=answer applies.
    """
    from worker_vllm import models
    from worker_vllm.configuration import resolve
    from worker_vllm.serverless import start

    try:
        configuration = resolve(environ, read_model_config=models.config_reader(environ))
        return start.run(configuration, environ)
    except StartupFailure as failure:
        if not start.stays_up(failure, environ):
            raise
        return start.answer(failure, environ)
