"""Real commands under the set-up's console."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from builder import console
from builder.console import CommandFailed, Console


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[Console]:
    monkeypatch.setattr(console, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(console, "LOG_EVERY_SECONDS", 0.05)
    with io.StringIO() as stream:
        yield Console(os.environ, stream)


def test_a_commands_output_is_kept_back_and_returned(quick: Console, tmp_path: Path) -> None:
    assert quick.run(["echo", "hello"], label="greeting", cwd=tmp_path) == "hello\n"
    assert quick._stream.getvalue() == ""  # type: ignore[attr-defined]


def test_a_failed_command_brings_its_output(quick: Console, tmp_path: Path) -> None:
    with pytest.raises(CommandFailed) as failure:
        quick.run(["sh", "-c", "echo out; echo err >&2; exit 3"], label="failing", cwd=tmp_path)
    assert (failure.value.code, failure.value.output) == (3, "out\nerr\n")


def test_a_long_command_shows_its_seconds_and_how_far_it_is(quick: Console, tmp_path: Path) -> None:
    quick.run(["sleep", "0.3"], label="sleeping", cwd=tmp_path, progress=lambda: "2 of 3")
    assert "set-up: sleeping … 0 s, 2 of 3\n" in quick._stream.getvalue()  # type: ignore[attr-defined]


def test_an_interrupted_command_does_not_run_on(quick: Console, tmp_path: Path) -> None:
    def interrupt() -> str:
        raise KeyboardInterrupt

    begun = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        quick.run(
            ["sh", "-c", "echo $$ > pid; exec sleep 60"], label="sleeping", cwd=tmp_path, progress=interrupt
        )
    assert time.monotonic() - begun < 30
    pid = int((tmp_path / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
