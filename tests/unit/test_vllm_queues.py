"""Which of vLLM's readers wait in another way than its own."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from worker_vllm import vllm_compat, vllm_queues


def sched_yield() -> None:
    """Stands where vLLM has its own; the switch beside it stands in this module too."""


USE_SCHED_YIELD = True


def names(condition: Any, *, cpu: bool = False) -> Any:
    """What `vllm_compat.load` finds."""
    platform = SimpleNamespace(is_cpu=lambda: cpu)
    return {"SpinCondition": condition, "current_platform": platform, "sched_yield": sched_yield}.__getitem__


@pytest.fixture
def condition(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A reader's condition that notes how long it was told to wait."""

    class Condition:
        def __init__(self) -> None:
            self.waited: list[Any] = []

        def wait(self, timeout_ms: int | None = None) -> None:
            self.waited.append(timeout_ms)

    monkeypatch.setattr(vllm_compat, "load", names(Condition))
    return Condition()


@pytest.mark.parametrize("asked, waited", [(None, 100), (5000, 100), (20, 20)])
def test_a_wait_is_bounded_and_a_shorter_one_stays(condition: Any, asked: int | None, waited: int) -> None:
    vllm_queues.wait_well()
    condition.wait(timeout_ms=asked)
    condition.wait(asked)
    assert condition.waited == [waited, waited]


@pytest.mark.parametrize(
    "name, waited", [("EngineCore_DP0", 100), ("VllmWorker-1", 100), ("Process-1", None)]
)
def test_a_spawned_process_looks_often_if_it_is_vllms(condition: Any, name: str, waited: Any) -> None:
    vllm_queues.wait_well_in(name)
    condition.wait()
    assert condition.waited == [waited]


@pytest.mark.parametrize("other", [None, type("Changed", (), {"wait": lambda self, seconds: None})])
def test_a_vllm_that_waits_in_another_way_is_left_alone(monkeypatch: pytest.MonkeyPatch, other: Any) -> None:
    before = vars(other).copy() if other else None
    monkeypatch.setattr(vllm_compat, "load", names(other))
    vllm_queues.wait_well()
    assert other is None or vars(other) == before


@pytest.mark.parametrize("cpu", [True, False])
def test_readers_sleep_instead_of_yielding_on_a_cpu_alone(monkeypatch: pytest.MonkeyPatch, cpu: bool) -> None:
    module = sys.modules[__name__]
    monkeypatch.setattr(module, "USE_SCHED_YIELD", True)
    monkeypatch.setattr(vllm_compat, "load", names(None, cpu=cpu))
    vllm_queues.wait_well()
    assert module.USE_SCHED_YIELD is not cpu
