"""`python -m builder.record_fields`: record vLLM's arguments, so that they can be checked without importing
vLLM.
 Without arguments it records the installed vLLM for the package itself. With wheels, which need not be
installed or
have their dependencies, it records each for the tests, by importing it with the dependencies that are here:

    pip download --no-deps --dest /tmp/wheels vllm==0.33.0
    python -m builder.record_fields /tmp/wheels/vllm-0.33.0-*.whl
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from builder.setup import ROOT

PACKAGE = ROOT / "src" / "worker_vllm" / "vllm_fields"
TESTS = ROOT / "tests" / "data"


def main(arguments: Sequence[str] | None = None) -> int:
    """Record what the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m builder.record_fields", description=__doc__)
    parser.add_argument("wheels", nargs="*", type=Path, help="vLLM wheels; none for the installed vLLM")
    wheels = parser.parse_args(arguments).wheels
    if not wheels:
        record(PACKAGE, "{version}.json")
    for wheel in wheels:
        _record_wheel(wheel)
    return 0


def record(folder: Path, name: str) -> Path:
    """Write the table of the vLLM that this process imports to `folder`; returns where.

    Args:
        name: the file's name, with {version} in it.
    """
    from worker_vllm import vllm_table

    table = vllm_table.read_table()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name.format(version=table.version.partition("+")[0])
    path.write_text(table.model_dump_json(indent=1, exclude_defaults=True) + "\n", encoding="utf-8")
    print(f"recorded {len(table.arguments)} arguments of vLLM {table.version} in {path}")
    return path


def _record_wheel(wheel: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with zipfile.ZipFile(wheel) as archive:
            # the compiled parts fit another torch, and no argument depends on them
            archive.extractall(folder, [name for name in archive.namelist() if not name.endswith(".so")])
        code = f"from builder import record_fields as r; r.record(r.TESTS, {'vllm-fields-{version}.json'!r})"
        environ = os.environ | {
            "PYTHONPATH": os.pathsep.join([folder, str(ROOT / "src"), str(ROOT)]),
            # a GPU build finds no platform on a machine without one
            "VLLM_TARGET_DEVICE": "cpu",
        }
        subprocess.run([sys.executable, "-c", code], env=environ, check=True, stdin=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(main())
