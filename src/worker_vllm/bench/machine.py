"""Which machine a report was made on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def machine(environ: Mapping[str, str]) -> dict[str, Any]:
    """Processor, cores, memory, GPU and kernel of this machine; what cannot be told is left out."""
    import psutil

    found: dict[str, Any] = {"cpu": _processor(), "cores": os.cpu_count()}
    found["memory_gb"] = round(psutil.virtual_memory().total / 1e9, 1)
    if gpu := _gpus(environ):
        found["gpu"] = gpu
    found["kernel"] = platform.release()
    found["python"] = platform.python_version()
    return found


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _gpus(environ: Mapping[str, str]) -> str:
    program = shutil.which("nvidia-smi", path=environ.get("PATH"))
    if program is None:
        return ""
    query = [program, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    done = subprocess.run(query, capture_output=True, text=True, timeout=30, check=False)
    return "; ".join(done.stdout.split("\n")).strip("; ") if done.returncode == 0 else ""
