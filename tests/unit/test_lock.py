"""The lock command: what it hands from pip's configuration to uv, and what it writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from builder import lock
from builder.packages import TORCH_INDEX


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A Python whose `pip config list` prints what the test writes."""
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\ncat {tmp_path / 'config'}\n")
    path.chmod(0o755)
    return path


def test_pips_index_and_folders_of_wheels_are_handed_on(tmp_path: Path, python: Path) -> None:
    (tmp_path / "torch-2.13.0+cpu-cp311-cp311-linux_x86_64.whl").touch()
    (tmp_path / "config").write_text(
        f":env:.find-links='{tmp_path}'\nglobal.cert='/etc/cert'\n"
        f"global.find-links='{tmp_path}'\nglobal.index-url='https://mirror.example/simple'\n"
    )
    options = lock.pip_options(python, {})
    assert options == ["--find-links", str(tmp_path), "--index-url", "https://mirror.example/simple"]


def test_torchs_own_index_is_added_where_no_folder_has_its_wheel(tmp_path: Path, python: Path) -> None:
    (tmp_path / "config").write_text(f"global.find-links='{tmp_path}'\n")
    assert TORCH_INDEX in lock.pip_options(python, {})


def test_the_image_gets_what_the_workers_resolution_has_more_than_vllms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Scripted(lock.Compiler):
        def compile(self, source: Path, output: Path, python: str, *more: str) -> dict[str, str]:
            assert python == lock.IMAGE_PYTHON
            shared = {"fastapi": "0.136.3", "six": "1.17.0"}
            return shared if source.name == "vllm.in" else {**shared, "runpod": "1.12.0", "boto3": "1.44.8"}

    monkeypatch.setattr(lock, "REQUIREMENTS", tmp_path / "requirements.txt")
    lock.lock_image(Scripted(Path("uv"), [], upgrade=False))
    text = (tmp_path / "requirements.txt").read_text()
    assert text == lock.REQUIREMENTS_HEADER + "boto3==1.44.8\nrunpod==1.12.0\n"
