# ruff: noqa: N802 - the names are the C library's
"""What NVML tells of this machine's GPUs; the library is a scripted one."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from worker_vllm.configuration import Machine, machine
from worker_vllm.doctor import hardware

GIB = 2**30


class FakeNvml:
    """The calls that are used, answering as the C library does: a status, and values by reference."""

    def __init__(
        self,
        count: int = 2,
        *,
        name: bytes = b"NVIDIA H200",
        peers: tuple[int, ...] = (0,),
        status: int = 0,
        used: int = 0,
    ) -> None:
        self.count, self.name, self.status, self.used = count, name, status, used
        self.peers = list(peers)
        self.open = 0

    def nvmlInit_v2(self) -> int:
        self.open += 1
        return self.status

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: Any) -> int:
        version._obj.value = 13000
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = self.count
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = index + 1
        return 0 if index < self.count else 2

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        handle._obj.value = 1
        return 0 if uuid == b"GPU-1" else 6

    def nvmlDeviceGetName(self, handle: Any, text: Any, length: int) -> int:
        text.value = self.name
        return 0

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:
        major._obj.value, minor._obj.value = 9, 0
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:
        found = memory._obj
        assert found.version == ctypes.sizeof(found) | 2 << 24
        found.total, found.reserved, found.used = 140 * GIB, GIB, self.used
        found.free = found.total - found.reserved - self.used
        return 0

    def nvmlDeviceGetP2PStatus(self, first: Any, second: Any, kind: int, status: Any) -> int:
        status._obj.value = self.peers.pop(0)
        return 0


@pytest.fixture(autouse=True)
def a_build_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "detect", lambda _: Machine("gpu"))


def test_gpus_are_found_with_memory_capability_and_what_is_free(tmp_path: Path) -> None:
    nvml = FakeNvml(used=40 * GIB)
    found = hardware.this_machine({}, nvml, tmp_path)
    assert found.count == 2
    assert found.devices[0] == hardware.Gpu("H200", 139 * GIB, (9, 0), 99 * GIB)
    assert found.driver_cuda == 13000
    assert found.shared_memory is not None
    assert not found.asked
    assert nvml.open == 0


@pytest.mark.parametrize(("visible", "count"), [("0", 1), ("1,0", 2), ("", 0), ("GPU-1", 1), ("0,7", 1)])
def test_only_visible_gpus_count(visible: str, count: int) -> None:
    assert hardware.this_machine({"CUDA_VISIBLE_DEVICES": visible}, FakeNvml()).count == count


@pytest.mark.parametrize(
    ("peers", "access"),
    [((0,), True), ((3,), False), ((0, 0, 0), True), ((3, 3, 3), False), ((0, 3, 0), None)],
    ids=str,
)
def test_peer_access_is_what_the_driver_says_of_each_pair(
    peers: tuple[int, ...], access: bool | None
) -> None:
    nvml = FakeNvml(2 if len(peers) == 1 else 3, peers=peers)
    assert hardware.this_machine({}, nvml).peer_access is access
    assert nvml.peers == []


def test_one_gpu_has_no_peer() -> None:
    assert hardware.this_machine({}, FakeNvml(1)).peer_access is None


def test_a_gpu_that_runpod_does_not_rent_keeps_its_name() -> None:
    assert hardware.this_machine({}, FakeNvml(name=b"NVIDIA GB300")).devices[0].name == "NVIDIA GB300"


def test_a_driver_that_does_not_answer_leaves_no_gpus() -> None:
    assert hardware.this_machine({}, FakeNvml(status=999)).devices == ()


def test_a_cpu_build_looks_at_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "detect", lambda _: Machine("cpu"))
    assert hardware.this_machine({}, None).platform == "cpu"
