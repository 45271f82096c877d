"""The image's build steps, as the Dockerfile has them, against folders of their own."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from builder import compile_modules
from builder.missing import network_failed
from builder.packages import pins
from tests.image.dockerfile import ROOT, Step, stages


def shell_step(stage: str, word: str) -> str:
    """The one shell command of a stage with this word."""
    (step,) = [step for step in stages()[stage].all("RUN") if word in step.words[0]]
    return step.words[0]


def run(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(
        filter(None, (environ.pop("first", ""), str(Path(sys.executable).parent), "/usr/bin", "/bin"))
    )
    return subprocess.run(
        ["sh", "-c", command], env={"PATH": path, **environ}, capture_output=True, text=True, check=False
    )


@pytest.mark.network
def test_the_sdk_runs_from_what_requirements_txt_installs(tmp_path: Path) -> None:
    """The rest of what it needs comes from vLLM's packages: here those of the CPU build."""
    command = shell_step("base-gpu", "pip install").replace(
        "/requirements.txt", str(ROOT / "requirements.txt")
    )
    install, _, check = command.partition("&&")
    done = run(f"{install} --target {tmp_path}", **pip_settings())
    if network_failed(done.stderr):
        pytest.skip("no package index answers")
    assert done.returncode == 0, done.stderr
    installed = {
        folder.name.split("-")[0].lower().replace("_", "-") for folder in tmp_path.glob("*.dist-info")
    }
    assert installed == {name.replace(".", "-") for name in pins((ROOT / "requirements.txt").read_text())}
    where = run(
        f'{check.strip()[:-1]}, aiodns; print(runpod.__file__, aiodns.__file__)"', PYTHONPATH=str(tmp_path)
    )
    assert where.returncode == 0, where.stderr
    assert [Path(path).is_relative_to(tmp_path) for path in where.stdout.split()] == [True, True]


def pip_settings() -> dict[str, str]:
    """Which index pip is to ask, and with which certificates."""
    return {
        name: text for name, text in os.environ.items() if name.startswith(("PIP_", "SSL_", "HOME", "HTTP"))
    }


def test_the_commands_wrapper_runs_the_worker(tmp_path: Path) -> None:
    done = run(shell_step("base", "worker-vllm").replace("/usr/local/bin", str(tmp_path)))
    assert done.returncode == 0, done.stderr
    shown = run(
        f"{tmp_path}/worker-vllm health", PYTHONPATH=str(ROOT / "src"), WORKER_STATE_FILE="/nowhere/state"
    )
    assert (shown.returncode, shown.stdout) == (1, "no worker has written /nowhere/state\n")


@pytest.fixture
def bake(tmp_path: Path) -> tuple[str, Path]:
    """The step that bakes, below a folder, and the file in which a stand-in notes how it was called."""
    calls = tmp_path / "calls"
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "worker-vllm").write_text(f'#!/bin/sh\necho "$@" HF_HOME=$HF_HOME >> {calls}\n')
    (tmp_path / "bin" / "worker-vllm").chmod(0o755)
    command = shell_step("bake", "worker-vllm")
    for folder in ("/models", "/manifest"):
        command = command.replace(folder, f"{tmp_path}{folder}")
    return command, calls


def test_without_a_model_nothing_is_baked(tmp_path: Path, bake: tuple[str, Path]) -> None:
    command, calls = bake
    done = run(command, first=str(tmp_path / "bin"), MODEL_NAME="")
    assert done.returncode == 0, done.stderr
    assert not calls.exists()
    for folder in ("models", "manifest"):  # which the last stage copies in any case
        assert list((tmp_path / folder).iterdir()) == []


def test_a_model_is_baked_with_its_manifest_beside_it(tmp_path: Path, bake: tuple[str, Path]) -> None:
    command, calls = bake
    done = run(command, first=str(tmp_path / "bin"), MODEL_NAME="org/model")
    assert done.returncode == 0, done.stderr
    assert calls.read_text() == f"bake --to {tmp_path}/models --root {tmp_path}/manifest HF_HOME=/tmp/hf\n"
    copies: list[Step] = [step for step in stages()["worker"].all("COPY") if step.flag("from") == "bake"]
    assert [step.words for step in copies] == [("/models", "/models"), ("/manifest", "/")]


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on Python's path with a package, a neighbour, and a template that is no Python."""
    for name, text in (
        ("image_probe/__init__.py", "1"),
        ("neighbour.py", "2"),
        ("template.py", "{{ name }} is"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(compile_modules.os, "cpu_count", lambda: 1)
    importlib.invalidate_caches()
    return tmp_path


def test_a_package_and_all_beside_it_is_compiled(packages: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compile_modules.main(["image_probe"]) == 0
    for source in (packages / "image_probe" / "__init__.py", packages / "neighbour.py"):
        assert Path(importlib.util.cache_from_source(source)).exists()
    assert capsys.readouterr().out.startswith(f"{packages}: 2 compiled modules")


def test_a_package_that_is_not_compiled_ends_the_build(
    packages: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (packages / "image_probe" / "__init__.py").write_text("{{ broken }")
    assert compile_modules.main(["image_probe", "no_such_package"]) == 1
    assert "not compiled: image_probe, no_such_package" in capsys.readouterr().err


def test_the_packages_that_the_image_compiles_are_vllms(monkeypatch: pytest.MonkeyPatch) -> None:
    command = shell_step("base-gpu", "compile_modules")
    packages = command.split("compile_modules.py ")[1].split()
    assert packages[0] == "vllm"
    assert all(compile_modules.origin(package) for package in packages)
