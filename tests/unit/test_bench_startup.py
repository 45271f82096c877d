"""Phases of a start, read from a log."""

from __future__ import annotations

import dataclasses
import logging

import pytest

from worker_vllm.bench.startup import PhaseLog, Start
from worker_vllm.phases import Phases


def _read(*lines: str) -> dict[str, float]:
    log = PhaseLog()
    for line in lines:
        log.read(line)
    return log.phases


def test_the_workers_own_lines_are_understood(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), Phases().phase("engine start"):
        pass
    assert list(_read(*caplog.messages)) == ["engine start"]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("INFO 11-29 worker | phase: load model 3.2 s", {"load model": 3.2}),
        ('{"level": "INFO", "message": "phase: imports 1 s"}', {"imports": 1.0}),
        ("phase: load model …", {}),
        ("INFO [default_loader.py:431] Loading weights took 0.48 seconds", {"vllm: weights": 0.48}),
        ("Model loading took 0.25 GiB memory and 1.234567 seconds", {"vllm: model": 1.234567}),
        ("torch.compile took 5.32 s in total", {"vllm: compile": 5.32}),
        ("Graph capturing finished in 4 secs, took 0.30 GiB", {"vllm: graphs": 4.0}),
        (
            "init engine (profile, create kv cache, warmup model) took 20.10 s (compilation: 5.32 s)",
            {"vllm: engine init": 20.1},
        ),
    ],
)
def test_a_line_tells_of_its_phase(line: str, expected: dict[str, float]) -> None:
    assert _read(line) == expected


def test_a_phase_of_two_processes_keeps_the_longer_time() -> None:
    assert _read("phase: load 2.0 s", "phase: load 3.0 s", "phase: load 1.0 s") == {"load": 3.0}


def test_a_start_survives_json() -> None:
    start = Start("worker", 1.5, 2.5, (("load", 1.0),))
    assert Start.from_json(dataclasses.asdict(start)) == start
