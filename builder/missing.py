"""What a machine can lack for the set-up, each found early and told in one line."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from builder.console import CommandFailed

PYTHON = (3, 11)
PYTHON_NAME = "python3.11"
DISK_BYTES = (
    5_000_000_000  # .venv 2.7 GB, wheels while they are unpacked 1 GB, pip's cache 1 GB, models 0.4 GB
)

PROBE = (
    "import platform, sys, venv, ensurepip; "
    "print(*sys.version_info[:2], sys.platform, platform.machine(), sep='|')"
)

NETWORK_SIGNS = re.compile(
    r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProtocolError|ProxyError|SSLError"
    r"|connection broken by|Could not fetch URL|Connection (?:refused|reset|timed out)|Read timed out"
)


class SetupError(Exception):
    """The set-up cannot go on; the text is one line that says what is missing and what to do."""


def find_python(search_path: str, own: Path = Path(sys.executable)) -> Path:
    """A Python 3.11 that can make virtual environments: `own`, or the first on `search_path`.

    Raises SetupError when there is none, or when this is not the machine that vLLM's CPU build is made for.
    """
    without_venv = None
    for candidate in _candidates(search_path, own):
        answer = _probe(candidate)
        if answer is None:
            if _probe(candidate, "import sys; print(*sys.version_info[:2])") == "{} {}".format(*PYTHON):
                without_venv = candidate
            continue
        major, minor, system, machine = answer.split("|")
        if (int(major), int(minor)) != PYTHON:
            continue
        if (system, machine) != ("linux", "x86_64"):
            raise SetupError(
                f"vLLM's CPU build and the lock are for Linux on x86_64; this is {system} on {machine}."
            )
        return candidate
    if without_venv:
        raise SetupError(
            f"{without_venv} cannot make virtual environments: install its venv module"
            " (Debian and Ubuntu: apt install python3.11-venv)."
        )
    raise SetupError(
        "Python 3.11 is missing: no working python3.11 on PATH. (Debian 12: apt install python3.11-venv;"
        " elsewhere: pyenv install 3.11, or uv python install 3.11.)"
    )


def check_disk(folder: Path, present_bytes: int) -> None:
    """Raise SetupError unless `folder`'s disk has room for the set-up, of which `present_bytes` are done."""
    needed = max(DISK_BYTES - present_bytes, 0)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SetupError(
            f"Disk space is missing: {folder} needs {needed / 1e9:.1f} GB and has {free / 1e9:.1f} GB free."
        )


def size_of(folder: Path) -> int:
    """Bytes of all files below `folder`; 0 when it does not exist."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() or path.is_symlink())


def explain(failure: CommandFailed, doing: str) -> SetupError:
    """Say in one line why `doing` failed, told by what the command wrote."""
    if "No space left on device" in failure.output:
        return SetupError(f"Disk space ran out while {doing}: free some and run this again to go on.")
    if network_failed(failure.output):
        return SetupError(
            f"Network: no package index answered while {doing}. Check the connection, or pip's own settings"
            " (`pip config list`), and run this again to go on."
        )
    return SetupError(f"Failed while {doing}: {last_line(failure.output) or failure}")


def network_failed(output: str) -> bool:
    """Whether pip's output tells of connections that failed. A local folder that is not there is none."""
    return NETWORK_SIGNS.search(output) is not None


def last_line(output: str) -> str:
    """The line of a command's output that likely says what went wrong: pip's first error, or the last."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR: ")]
    return (errors or lines[-1:] or [""])[0].removeprefix("ERROR: ")


def _candidates(search_path: str, own: Path) -> Iterator[Path]:
    yield own.resolve()  # of a virtual environment, the Python that it was made with
    yield from _on_path(search_path.split(":"))


def _on_path(folders: Iterable[str]) -> Iterator[Path]:
    """Every python3.11, not the first alone: a version manager's shim can stand there and refuse."""
    for folder in folders:
        found = shutil.which(PYTHON_NAME, path=folder) if folder else None
        if found:
            yield Path(found)


def _probe(python: Path, code: str = PROBE) -> str | None:
    try:
        done = subprocess.run(
            [str(python), "-c", code],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
