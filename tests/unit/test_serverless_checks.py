"""The look at the machine before weights are loaded."""

from __future__ import annotations

import ctypes
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from worker_vllm import installed
from worker_vllm.errors import EngineStartError
from worker_vllm.serverless import checks


class FakeNvml:
    """The few functions of NVML that are asked, as ctypes shows them."""

    def __init__(self, *, init: int = 0, gpus: int = 1, driver: int = 13000) -> None:
        self.init, self.gpus, self.driver = init, gpus, driver
        self.shut_down = 0

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return self.init

    def nvmlDeviceGetCount_v2(self, count: object) -> int:  # noqa: N802
        count._obj.value = self.gpus  # type: ignore[attr-defined]
        return 0

    def nvmlSystemGetCudaDriverVersion_v2(self, version: object) -> int:  # noqa: N802
        version._obj.value = self.driver  # type: ignore[attr-defined]
        return 0

    def nvmlShutdown(self) -> int:  # noqa: N802
        self.shut_down += 1
        return 0


@pytest.fixture
def torch_for_cuda_13(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", {"torch": "2.13.0+cu130", "vllm": "0.32.0"}.get)


def test_a_healthy_machine_has_nothing_to_say(torch_for_cuda_13: None) -> None:
    nvml = FakeNvml()
    assert checks.check_machine(nvml=nvml) == []
    assert nvml.shut_down == 1


def test_a_build_for_cpu_does_not_look_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", lambda _: "0.32.0+cpu")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: pytest.fail(f"loaded {name}"))
    assert checks.check_machine() == []


@pytest.mark.parametrize(
    ("nvml", "words"),
    [(FakeNvml(gpus=0), "no GPU is visible"), (FakeNvml(init=999), "NVML error 999")],
)
def test_a_machine_without_a_usable_gpu_cannot_start(
    torch_for_cuda_13: None, nvml: FakeNvml, words: str
) -> None:
    with pytest.raises(EngineStartError, match=words):
        checks.check_machine(nvml=nvml)


def test_a_machine_without_a_driver_cannot_start(
    torch_for_cuda_13: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with pytest.raises(EngineStartError, match="no NVIDIA driver is visible"):
        checks.check_machine()


def test_an_old_driver_is_a_warning_with_both_versions(torch_for_cuda_13: None) -> None:
    (warning,) = checks.check_machine(nvml=FakeNvml(driver=12040))
    assert "supports CUDA 12.4" in warning
    assert "built for 13.0" in warning


def test_a_full_disk_and_an_unwritable_folder_are_named_together(
    torch_for_cuda_13: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * 1024**2))
    monkeypatch.setattr(checks.os, "access", lambda *_: False)
    with pytest.raises(EngineStartError) as raised:
        checks.check_machine(nvml=FakeNvml())
    assert "has 5 MB free, at least 256 MB are needed" in raised.value.message
    assert "is not writable" in raised.value.message
    assert "\n" not in raised.value.message


def test_little_shared_memory_is_a_warning(
    torch_for_cuda_13: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = {tmp_path: 1024**2}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free.get(path, 1024**4)))
    (warning,) = checks.check_machine(shm=tmp_path, nvml=FakeNvml())
    assert "shared memory" in warning
