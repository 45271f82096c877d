"""Where compiled code is kept, from a volume that is a folder here."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from worker_vllm.configuration import machine
from worker_vllm.configuration.machine import Machine
from worker_vllm.engine import caches

H200 = ("NVIDIA H200", "NVIDIA H200")


@pytest.fixture
def on_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The environment of a worker with GPUs and a volume at BASE_PATH."""
    monkeypatch.setattr(machine, "detect", lambda environ: Machine("gpu", gpus=2))
    monkeypatch.setattr(machine, "gpu_names", lambda: H200)
    monkeypatch.setattr(caches.os.path, "ismount", lambda path: path == tmp_path)
    monkeypatch.setattr(caches.installed, "vllm_version", lambda: "0.32.0")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return {"BASE_PATH": str(tmp_path)}


def mounted(*paths: str) -> Callable[[Path], bool]:
    return lambda path: str(path) in paths


def test_the_place_names_the_version_and_the_kind_of_gpu() -> None:
    place = caches.place({}, "0.32.0+cu130", H200, mounted("/runpod-volume"))
    assert place == Path("/runpod-volume/compile-cache/vllm-0.32.0+cu130/nvidia-h200")
    mixed = caches.place({}, "0.32.0", ("Tesla V100-SXM2-16GB", "NVIDIA L4"), mounted("/runpod-volume"))
    assert mixed is not None
    assert mixed.name == "nvidia-l4+tesla-v100-sxm2-16gb"


def test_base_path_says_where_the_volume_is() -> None:
    place = caches.place({"BASE_PATH": " /workspace "}, "0.32.0", H200, mounted("/workspace"))
    assert place is not None
    assert place.is_relative_to("/workspace")


@pytest.mark.parametrize("gpus", [H200, ()])
def test_without_a_volume_or_a_gpu_there_is_no_place(gpus: tuple[str, ...]) -> None:
    """A folder of the container is gone after it, and vLLM's own place is as good."""
    assert caches.place({}, "0.32.0", gpus, mounted("/runpod-volume") if not gpus else mounted()) is None


def test_a_variable_that_somebody_set_is_left_alone() -> None:
    environ = {"TRITON_CACHE_DIR": "/tmp/triton", "VLLM_CACHE_ROOT": " "}
    chosen = caches.variables(environ, Path("/v"), locks=True)
    assert chosen == {
        "VLLM_CACHE_ROOT": "/v/vllm",
        "TORCHINDUCTOR_CACHE_DIR": "/v/torchinductor",
        "FLASHINFER_WORKSPACE_BASE": "/v/flashinfer",
        "CUDA_CACHE_PATH": "/v/cuda",
    }


def test_caches_that_need_locks_stay_away_from_a_file_system_without() -> None:
    chosen = caches.variables({}, Path("/v"), locks=False)
    assert chosen.keys() == caches.VARIABLES.keys() - caches.NEED_LOCKS


@pytest.mark.parametrize(("text", "probes"), [("0", True), ("false", True), ("", True), ("1", False)])
def test_a_probe_of_this_host_is_not_shared_with_others(text: str, probes: bool) -> None:
    """vLLM probes for every value but 1 (envs.py)."""
    chosen = caches.variables({"VLLM_SKIP_P2P_CHECK": text}, Path("/v"), locks=True)
    assert ("VLLM_CACHE_ROOT" not in chosen) is probes


def test_the_environment_gets_the_places_and_the_log_one_line(
    on_gpus: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        caches.settle(on_gpus)
        caches.settle(on_gpus)
    folder = Path(on_gpus["BASE_PATH"], "compile-cache", "vllm-0.32.0", "nvidia-h200")
    assert {name: on_gpus[name] for name in caches.VARIABLES} == {
        name: str(folder / part) for name, part in caches.VARIABLES.items()
    }
    (record,) = caplog.records
    assert (
        record.getMessage()
        == f"compiled code is kept on the volume, in {folder} ({', '.join(caches.VARIABLES)})"
    )
    assert list(folder.iterdir()) == []


def test_a_volume_that_cannot_be_written_is_left_alone(
    on_gpus: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    Path(on_gpus["BASE_PATH"], "compile-cache").write_text("a file where the folder would be")
    with caplog.at_level(logging.INFO):
        caches.settle(on_gpus)
    assert on_gpus.keys() == {"BASE_PATH", "TRITON_CACHE_DIR"}
    assert "compiled code is kept in the container" in caplog.text


@pytest.mark.parametrize(
    ("given", "place"),
    [
        ({}, "AT/home/.triton/cache"),
        ({"TRITON_CACHE_DIR": " "}, "AT/home/.triton/cache"),
        ({"TRITON_HOME": "AT/elsewhere"}, "AT/elsewhere/.triton/cache"),
        ({"TRITON_CACHE_DIR": "/given"}, "/given"),
    ],
)
def test_without_a_volume_triton_keeps_its_kernels_where_the_next_start_looks(
    given: dict[str, str], place: str, on_gpus: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches.os.path, "ismount", lambda path: False)
    at = on_gpus["BASE_PATH"]
    environ = on_gpus | {name: text.replace("AT", at) for name, text in given.items()}
    caches.settle(environ)
    assert environ["TRITON_CACHE_DIR"] == place.replace("AT", at)


def test_triton_is_left_alone_where_its_own_place_cannot_be_written(
    on_gpus: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caches.os.path, "ismount", lambda path: False)
    Path(on_gpus["BASE_PATH"], "home").write_text("a file where the folder would be")
    caches.settle(on_gpus)
    assert on_gpus.keys() == {"BASE_PATH"}


def test_a_cpu_build_keeps_its_own_places(on_gpus: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "detect", lambda environ: Machine("cpu"))
    caches.settle(on_gpus)
    assert on_gpus.keys() == {"BASE_PATH"}


def test_a_file_system_with_locks_is_told_from_one_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert caches.takes_locks(tmp_path)

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(caches.fcntl, "flock", refuse)
    assert not caches.takes_locks(tmp_path)
