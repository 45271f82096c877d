"""The command: verbs, versions, and start-up failures as one last line and an exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import worker_vllm
from worker_vllm import cli
from worker_vllm.errors import ConfigurationError, EngineStartError

ROOT = Path(__file__).parents[2]


def with_verb(monkeypatch: pytest.MonkeyPatch, run: Any, **module: Any) -> None:
    """Let the verb "run" be this function."""

    def add_parser(subparsers: Any) -> None:
        subparsers.add_parser("run").add_argument("--number", type=int, default=0)

    verb = SimpleNamespace(add_parser=add_parser, run=run, **module)
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: verb)


def test_a_verb_gets_its_arguments_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    with_verb(monkeypatch, lambda args, environ: seen.append((args.number, environ)) or 7)  # type: ignore[func-returns-value]
    assert cli.main(["run", "--number", "3"], {"A": "1"}) == 7
    assert seen == [(3, {"A": "1"})]


def test_only_the_chosen_verb_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []
    real = cli.importlib.import_module
    monkeypatch.setattr(cli.importlib, "import_module", lambda name: names.append(name) or real(name))
    with pytest.raises(SystemExit):
        cli.main(["run", "--help"], {})
    assert names == ["worker_vllm.cli.run"]


@pytest.mark.parametrize("verb", sorted(cli.VERBS))
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main([verb, "--help"], {})
    assert left.value.code == 0
    assert f"worker-vllm {verb}" in capsys.readouterr().out


def test_help_names_every_verb(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"], {})
    shown = capsys.readouterr().out
    assert all(verb in shown for verb in cli.VERBS)


def test_version_shows_what_the_worker_stands_on(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["--version"], {})
    assert left.value.code == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["worker-vllm", "vllm", "torch", "transformers", "runpod"]
    assert lines[0] == f"worker-vllm {worker_vllm.__version__}"
    assert "runpod 1.12.0" in lines


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["run", "--nonsense"]])
def test_bad_arguments_exit_with_2(monkeypatch: pytest.MonkeyPatch, arguments: list[str]) -> None:
    with_verb(monkeypatch, lambda *_: 0)
    with pytest.raises(SystemExit) as left:
        cli.main(arguments, {})
    assert left.value.code == 2


def test_the_worker_ignores_arguments_that_are_the_sdks_or_an_old_templates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_verb(monkeypatch, lambda *_: 0, IGNORES_UNKNOWN_ARGUMENTS=True)
    assert cli.main(["run", "--rp_log_level", "INFO", "bash", "-c", "x"], {}) == 0


def test_a_start_failure_is_the_last_line_and_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise EngineStartError("the weights\nare larger than the GPU")

    with_verb(monkeypatch, fail)
    assert cli.main(["run"], {}) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == "worker-vllm cannot start (exit code 3): the weights are larger than the GPU"


def test_bad_configuration_lists_its_problems_and_repeats_them_in_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ConfigurationError(["A=1: expected a word", "B=x: expected a number"])

    with_verb(monkeypatch, fail)
    assert cli.main(["run"], {}) == 2
    *lines, last = capsys.readouterr().err.splitlines()
    assert lines == [
        "bad configuration (2 problems):",
        "  - A=1: expected a word",
        "  - B=x: expected a number",
    ]
    assert last.endswith("bad configuration: A=1: expected a word; B=x: expected a number")


def test_a_bug_is_not_a_traceback_on_the_last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object) -> int:
        raise ZeroDivisionError("secret")

    with_verb(monkeypatch, fail)
    assert cli.main(["run"], {}) == cli.EXIT_BUG
    assert capsys.readouterr().err.splitlines()[-1].startswith("worker-vllm failed: ZeroDivisionError")


def test_the_containers_entry_starts_nothing_when_a_child_imports_it() -> None:
    code = (
        "import sys; sys.path.insert(0, 'src'); import handler; "
        "print(sorted(m for m in sys.modules if 'worker' in m))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_containers_entry_is_the_verb_run() -> None:
    """Without a model it says so in its last line, and exits with the code for a bad configuration."""
    ended = subprocess.run(
        [sys.executable, "src/handler.py", "--rp_log_level", "INFO"],
        cwd=ROOT,
        env={"PATH": "/usr/bin"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 2
    assert "MODEL_NAME is not set" in ended.stderr.splitlines()[-1]
