"""The door through which vLLM is loaded."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from worker_vllm import vllm_compat


@pytest.fixture
def collecting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[bool]]:
    """Whether the collector was on during each import; "vllm_engine" has the name, any other fails."""
    seen: list[bool] = []

    def import_module(home: str) -> Any:
        seen.append(gc.isenabled())
        if home != "vllm_engine":
            raise ImportError(home)
        return SimpleNamespace(Thing=1)

    monkeypatch.setattr(vllm_compat, "import_module", import_module)
    homes = {"Thing": ("vllm_moved", "vllm_engine"), "Lost": ("vllm_moved",)}
    monkeypatch.setattr(vllm_compat, "HOMES", homes)
    yield seen
    vllm_compat.load.cache_clear()


def test_the_collector_rests_while_vllm_is_imported_and_no_longer(collecting: list[bool]) -> None:
    frozen = gc.get_freeze_count()
    assert vllm_compat.load("Thing") == 1
    assert collecting == [False, False]
    assert gc.isenabled()
    assert gc.get_freeze_count() > frozen, "the first collection after it would walk all of it"


def test_the_collector_runs_again_after_an_import_that_failed(collecting: list[bool]) -> None:
    with pytest.raises(ImportError, match="has no Lost"):
        vllm_compat.load("Lost")
    assert collecting == [False]
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off(collecting: list[bool]) -> None:
    gc.disable()
    try:
        vllm_compat.load("Thing")
        assert not gc.isenabled()
    finally:
        gc.enable()
