"""The GPUs that are looked at: those that were asked about, or those of this machine, found through NVML,
which creates no CUDA context."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from worker_vllm import installed
from worker_vllm.configuration import machine
from worker_vllm.doctor import gpus
from worker_vllm.doctor.gpus import GpuKind

_MEMORY_V2 = 2
_P2P_WRITE = 1


@dataclass(frozen=True)
class Gpu:
    """One GPU.

    Attributes:
        name: for people.
        memory: bytes that CUDA can give out.
        capability: CUDA's compute capability.
        free: bytes that are free now; None where nobody looked.
    """

    name: str
    memory: int
    capability: tuple[int, int]
    free: int | None = None

    @property
    def memory_gib(self) -> float:
        """Its memory in GiB."""
        return self.memory / gpus.GIB


@dataclass(frozen=True)
class Hardware:
    """What the model is to run on.

    Attributes:
        platform: cpu for vLLM's CPU build.
        devices: the GPUs.
        asked: whether they were asked about, and are not here.
        peer_access: whether GPUs reach each other's memory (NVLink, or PCIe where the host allows it): all of
            them, or none; None where unknown, where some do, or where there is one GPU.
        shared_memory: bytes of /dev/shm; None where nobody looked.
        driver_cuda: the driver's CUDA version, as 12040 for 12.4; None where nobody looked.
        torch_cuda: the CUDA version that the installed torch is built for; None for a CPU build.
        host_memory: bytes of host memory that can be had; 0 where nobody looked.
    """

    platform: Literal["gpu", "cpu"]
    devices: tuple[Gpu, ...] = ()
    asked: bool = False
    peer_access: bool | None = None
    shared_memory: int | None = None
    driver_cuda: int | None = None
    torch_cuda: tuple[int, int] | None = None
    host_memory: int = 0

    @property
    def count(self) -> int:
        """How many GPUs."""
        return len(self.devices)

    @property
    def smallest(self) -> Gpu | None:
        """The GPU with the least memory: it decides."""
        return min(self.devices, key=lambda device: device.memory, default=None)

    @property
    def capability(self) -> tuple[int, int] | None:
        """The least compute capability among the GPUs."""
        return min((device.capability for device in self.devices), default=None)


def asked_for(text: str) -> Hardware:
    """The hardware that `text` asks about, such as 2xH200.

    Raises:
        ValueError: naming the nearest kind of GPU.
    """
    count, kind = gpus.read_request(text)
    return of_kind(kind, count)


def of_kind(kind: GpuKind, count: int) -> Hardware:
    """`count` GPUs of a kind, in one machine."""
    devices = (Gpu(kind.name, kind.memory, kind.capability),) * count
    peer_access = kind.nvlink if count > 1 else None
    return Hardware("gpu", devices, asked=True, peer_access=peer_access, torch_cuda=torch_cuda())


def this_machine(environ: Mapping[str, str], nvml: Any = None, shm: Path = Path("/dev/shm")) -> Hardware:
    """What this machine offers to a process with this environment.

    Args:
        nvml: see `machine.ask_driver`.
    """
    platform = machine.detect(environ).platform
    memory = machine.free_memory()
    if platform == "cpu":
        return Hardware("cpu", host_memory=memory)
    shared = shutil.disk_usage(shm).total if shm.exists() else None
    found = machine.ask_driver(lambda driver: _found(driver, environ, shared, memory), nvml)
    return found or Hardware("gpu", shared_memory=shared, torch_cuda=torch_cuda(), host_memory=memory)


def _found(nvml: Any, environ: Mapping[str, str], shared: int | None, memory: int) -> Hardware:
    handles = _visible(nvml, environ)
    driver = ctypes.c_int(0)
    known = nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(driver)) == 0
    return Hardware(
        "gpu",
        tuple(_device(nvml, handle) for handle in handles),
        peer_access=_peer_access(nvml, handles),
        shared_memory=shared,
        driver_cuda=driver.value if known else None,
        torch_cuda=torch_cuda(),
        host_memory=memory,
    )


def _visible(nvml: Any, environ: Mapping[str, str]) -> list[ctypes.c_void_p]:
    count = ctypes.c_uint(0)
    nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(count.value)] if visible is None else visible.split(",")
    handles = []
    for name in (name.strip() for name in names):
        handle = ctypes.c_void_p()
        if name.isdigit():
            status = nvml.nvmlDeviceGetHandleByIndex_v2(int(name), ctypes.byref(handle))
        else:
            status = nvml.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
        if status:
            break  # CUDA stops at the first name that it does not know, too
        handles.append(handle)
    return handles


class _Memory(ctypes.Structure):
    """nvmlMemory_v2_t: unlike the first version it tells what the driver keeps for itself."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def _device(nvml: Any, handle: ctypes.c_void_p) -> Gpu:
    text = ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetName(handle, text, len(text))
    major, minor = ctypes.c_int(0), ctypes.c_int(0)
    nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    memory = _Memory(version=ctypes.sizeof(_Memory) | _MEMORY_V2 << 24)
    known = nvml.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)) == 0
    total, free = (memory.total - memory.reserved, memory.free) if known else (0, None)
    name = text.value.decode(errors="replace")
    kind = gpus.by_id(name)
    return Gpu(kind.name if kind else name, total, (major.value, minor.value), free)


def _peer_access(nvml: Any, handles: list[ctypes.c_void_p]) -> bool | None:
    reached: set[bool] = set()
    for first, second in itertools.combinations(handles, 2):
        status = ctypes.c_int(0)
        if nvml.nvmlDeviceGetP2PStatus(first, second, _P2P_WRITE, ctypes.byref(status)):
            return None
        reached.add(status.value == 0)
    return reached.pop() if len(reached) == 1 else None


@cache
def torch_cuda() -> tuple[int, int] | None:
    """The CUDA version that the installed torch is built for; None for a CPU build, or without torch."""
    found = re.search(r"\+cu(\d+)(\d)$", installed.version("torch") or "")
    return (int(found[1]), int(found[2])) if found else None
