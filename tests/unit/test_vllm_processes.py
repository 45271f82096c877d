"""How the engine's processes are started: what is decided, and what a forked child is told."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from worker_vllm import vllm_compat, vllm_processes
from worker_vllm.vllm_processes import METHOD_VARIABLE


class Torch:
    """The two calls that torch has for its threads."""

    def __init__(self) -> None:
        self.threads = 8

    def get_num_threads(self) -> int:
        return self.threads

    def set_num_threads(self, count: int) -> None:
        self.threads = count


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Torch]:
    torch = Torch()
    names = {
        "current_platform": SimpleNamespace(is_cpu=lambda: True),
        "get_num_threads": torch.get_num_threads,
        "set_num_threads": torch.set_num_threads,
    }
    monkeypatch.setattr(vllm_compat, "load", names.__getitem__)
    # a test process has threads of its own
    others = threading.active_count() - 1
    active_count = threading.active_count
    monkeypatch.setattr(threading, "active_count", lambda: active_count() - others)
    yield torch


def config(*, world_size: int = 1, media: bool = False) -> Any:
    return SimpleNamespace(
        parallel_config=SimpleNamespace(world_size=world_size),
        model_config=SimpleNamespace(is_multimodal_model=media),
    )


def in_a_forked_child(report: Any) -> str:
    """What `report` returns in a forked child, as text."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        os.write(writing, repr(report()).encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as answer:
        return answer.read()


def test_on_a_cpu_this_process_keeps_to_one_thread_before_it_forks(torch: Torch) -> None:
    assert vllm_processes.keep_single_threaded() == 8
    assert torch.threads == 1


def test_a_method_that_the_user_has_named_stays(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METHOD_VARIABLE, "spawn")
    assert vllm_processes.keep_single_threaded() is None
    assert torch.threads == 8


def test_the_method_is_fork_while_the_processes_start_and_unset_afterwards(
    torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(METHOD_VARIABLE, "spawn")
    with vllm_processes.forked(config(), 2):
        assert os.environ[METHOD_VARIABLE] == "fork"
    assert METHOD_VARIABLE not in os.environ


def test_a_process_with_other_threads_does_not_fork(torch: Torch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(METHOD_VARIABLE, "spawn")
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    try:
        with vllm_processes.forked(config(), 2):
            assert os.environ[METHOD_VARIABLE] == "spawn"
    finally:
        end.set()
        other.join()


@pytest.mark.parametrize("asked", [config(world_size=2), config(media=True)])
def test_several_workers_and_models_with_media_are_spawned_and_this_process_gets_its_threads_back(
    asked: Any, torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(METHOD_VARIABLE, raising=False)
    threads = vllm_processes.keep_single_threaded()
    monkeypatch.setenv(METHOD_VARIABLE, "spawn")
    with vllm_processes.forked(asked, threads):
        assert os.environ[METHOD_VARIABLE] == "spawn"
    assert torch.threads == 8


@pytest.mark.parametrize("name, text", [("GOMP_CPU_AFFINITY", "{} {}"), ("OMP_PLACES", "{{{},{}}}")])
def test_a_forked_child_computes_with_the_threads_and_cpus_that_the_environment_names(
    name: str, text: str, torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = min(os.sched_getaffinity(0))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv(name, text.format(cpu, cpu))
    with vllm_processes.forked(config(), 2):
        told = in_a_forked_child(lambda: (torch.threads, os.sched_getaffinity(0)))
    assert told == repr((3, {cpu}))


def test_a_forked_child_that_nothing_is_said_to_has_the_usual_threads(
    torch: Torch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    with vllm_processes.forked(config(), 2):
        assert in_a_forked_child(lambda: torch.threads) == "2"


def test_a_child_forked_later_is_left_alone(torch: Torch) -> None:
    with vllm_processes.forked(config(), 2):
        pass
    assert in_a_forked_child(lambda: torch.threads) == "8"
