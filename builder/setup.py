"""`python -m builder.setup`: make this checkout ready to run, or find in an instant that it is.

Any Python 3 can start it; it goes on with Python 3.11 and needs the standard library alone. With `--tests` it
also makes the models that only tests use, with `--compat 0.28` the environment of `make test-compat`.
Ends with 0, 1 when something is missing (the last line says what), or 130 when interrupted.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from builder.console import Console
from builder.missing import PYTHON, SetupError, find_python
from builder.models import Models
from builder.packages import Environment

ROOT = Path(__file__).resolve().parent.parent
COMPAT_RELEASES = ("0.28", "0.30")
MISSING = 1
INTERRUPTED = 130  # what a shell reports for a program that Ctrl-C ended


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Do what the command line asks for and return its exit code; `environ` has PATH and pip's settings."""
    options = _parser().parse_args(arguments)
    console = Console(environ)
    try:
        if sys.version_info[:2] != PYTHON:
            python = find_python(environ.get("PATH", ""))
            os.execve(python, [str(python), "-m", "builder.setup", *arguments], dict(environ))
        set_up(ROOT, console, environ.get("PATH", ""), tests=options.tests, compat=options.compat)
    except SetupError as problem:
        console.say(str(problem))
        return MISSING
    except KeyboardInterrupt:
        console.say("interrupted; run it again to go on from here")
        return INTERRUPTED
    return 0


def set_up(
    root: Path, console: Console, search_path: str, *, tests: bool = False, compat: str | None = None
) -> None:
    """Make the checkout at `root` ready, unless it is; a Python to begin with is looked for on `search_path`.

    Raises SetupError with one line.
    """
    if compat:
        environment = Environment(root, f".venv-compat-{compat}", f"compat-{compat}")
    else:
        environment = Environment(root, ".venv", "cpu")
    models = Models(root, environment)
    if environment.is_ready() and not models.missing(tests=tests):
        return
    with _alone(root / ".cache", console):
        if not environment.is_ready():
            environment.set_up(console, find_python(search_path))
        models.set_up(console, models.missing(tests=tests))


@contextmanager
def _alone(cache: Path, console: Console) -> Iterator[None]:
    """Wait until no other set-up of this checkout runs: `make run` and `make test` may start together."""
    cache.mkdir(exist_ok=True)
    with (cache / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            console.say("another set-up is running here; waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        # What a killed run left may be a gigabyte of half unpacked wheels.
        shutil.rmtree(cache / "tmp", ignore_errors=True)
        try:
            yield
        finally:
            shutil.rmtree(cache / "tmp", ignore_errors=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m builder.setup")
    parser.add_argument("--tests", action="store_true", help="also make the models that only tests use")
    parser.add_argument("--compat", choices=COMPAT_RELEASES, help="make the environment of this older vLLM")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
