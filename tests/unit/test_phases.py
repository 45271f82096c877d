"""How long a start takes, told from the process's own beginning."""

from __future__ import annotations

import logging
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker_vllm import phases
from worker_vllm.phases import Phases, process_age


def test_a_process_is_as_old_as_its_start_and_not_as_its_first_import() -> None:
    code = "import time; time.sleep(0.5); from worker_vllm.phases import process_age; print(process_age())"
    begun = time.monotonic()
    age = float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
    assert 0.5 <= age <= time.monotonic() - begun + 0.02  # the kernel counts in hundredths


def test_a_system_that_does_not_tell_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(phases.Path, "read_text", refuse)
    first = process_age()
    assert 0 < first <= process_age()


def test_what_came_before_the_log_is_a_phase_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    told = Phases()
    with caplog.at_level(logging.INFO):
        told.passed("read the settings")
    assert told.seconds["read the settings"] == pytest.approx(process_age(), abs=0.5)
    assert caplog.messages == [f"phase: read the settings {told.seconds['read the settings']:.1f} s"]
