"""A look at the machine before weights are loaded: what would fail later, said now and in plain words.

It stands in for the SDK's own fitness checks, which create a CUDA context on every GPU (taken from vLLM's
memory, and it forces vLLM to spawn its engine) and want a public name server within reach.
"""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

from worker_vllm import installed
from worker_vllm.errors import EngineStartError

MIN_FREE_DISK_BYTES = 256 * 1024**2
"""Below this neither logs nor compile caches fit."""
MIN_FREE_SHM_BYTES = 32 * 1024**2
"""What the shared buffers of the SDK and vLLM need with one GPU; Docker's own /dev/shm has 64 MB."""

_NVML = "libnvidia-ml.so.1"


def check_machine(shm: Path = Path("/dev/shm"), nvml: Any = None) -> list[str]:
    """Look at disk, shared memory, GPUs and driver; returns warnings, a sentence each.

    Args:
        nvml: the driver's management library; None loads it, where a vLLM for CUDA is installed.

    Raises:
        EngineStartError: what keeps the worker from starting here, all of it.
    """
    directory = Path(tempfile.gettempdir())
    faults = _space(directory, MIN_FREE_DISK_BYTES, "the disk")
    if not os.access(directory, os.W_OK):
        faults.append(f"{directory} is not writable, and vLLM keeps its sockets there")
    warnings = _space(shm, MIN_FREE_SHM_BYTES, "shared memory") if shm.exists() else []
    if nvml is not None or _built_for_cuda(installed.version("vllm") or ""):
        gpu_faults, gpu_warnings = _gpus(nvml)
        faults += gpu_faults
        warnings += gpu_warnings
    if faults:
        raise EngineStartError("; ".join(faults))
    return warnings


def _space(path: Path, wanted_bytes: int, name: str) -> list[str]:
    free = shutil.disk_usage(path).free
    if free >= wanted_bytes:
        return []
    return [f"{name} at {path} has {free >> 20} MB free, at least {wanted_bytes >> 20} MB are needed"]


def _gpus(nvml: Any) -> tuple[list[str], list[str]]:
    """Faults and warnings about GPUs and driver. NVML creates no CUDA context."""
    try:
        nvml = nvml or ctypes.CDLL(_NVML)
    except OSError:
        return ["no NVIDIA driver is visible in this container; give the endpoint a GPU"], []
    if status := nvml.nvmlInit_v2():
        return [f"the NVIDIA driver does not answer (NVML error {status}); the host needs attention"], []
    try:
        count, driver = ctypes.c_uint(0), ctypes.c_int(0)
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) or count.value == 0:
            return ["no GPU is visible in this container; give the endpoint a GPU"], []
        if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(driver)):
            return [], []
        return [], _driver_age(driver.value, installed.version("torch") or "")
    finally:
        nvml.nvmlShutdown()


def _driver_age(driver: int, torch_version: str) -> list[str]:
    """A warning where the driver's CUDA is of an older major version than torch's. Only a warning: an
    image may carry NVIDIA's forward-compatibility libraries.

    Args:
        driver: as CUDA writes versions: 12040 is 12.4.
        torch_version: with its local part, such as 2.13.0+cu130.
    """
    found = re.search(r"\+cu(\d+)(\d)$", torch_version)
    if found is None or driver // 1000 >= int(found[1]):
        return []
    has = f"{driver // 1000}.{driver % 1000 // 10}"
    return [
        f"the driver of this host supports CUDA {has}, and this image is built for {found[1]}.{found[2]}; "
        "choose that CUDA version or later in the endpoint's settings"
    ]


def _built_for_cuda(vllm_version: str) -> bool:
    return bool(vllm_version) and not re.search(r"\+(cpu|rocm|xpu|tpu)", vllm_version)
