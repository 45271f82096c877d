"""`worker-vllm health`: whether the worker in this container serves, for a container's health check."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_vllm import settings
from worker_vllm.errors import ConfigurationError

_DESCRIPTION = """\
Tell whether the worker on this machine serves jobs: exit code 0 if it does, 1 while it starts or leaves, and
where it has ended or hangs. Looks at the file WORKER_STATE_FILE and asks nobody.
"""

UNHEALTHY = 1


def add_parser(subparsers: Any) -> None:
    """Add the verb's parser."""
    subparsers.add_parser("health", help="tell whether the worker here serves", description=_DESCRIPTION)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the worker's state in one line; returns the exit code.

    Raises:
        ConfigurationError: WORKER_STATE_FILE is not set.
    """
    from worker_vllm.serverless import sign

    path = settings.read(environ).settings.worker_state_file
    if path is None:
        raise ConfigurationError(["WORKER_STATE_FILE is not set: the worker then writes no sign of life"])
    serves, words = sign.read(Path(path))
    print(words)
    return 0 if serves else UNHEALTHY
