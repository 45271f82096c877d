"""A virtual environment that holds exactly one lock, this project, and a stamp that says so.

Every step looks at what is there first, and the stamp is written last, so an interrupted set-up goes on where
it stopped. pip does the installing, because mirrors, certificates and proxies are configured for pip.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from builder.console import CommandFailed, Console
from builder.missing import SetupError, check_disk, explain, last_line, network_failed, size_of

STAMP_NAME = "worker-vllm.json"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
VERSION = "import sys; print(*sys.version_info[:2], sep='.')"
CHECK = "import vllm.entrypoints.openai.api_server, uvloop, runpod"
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")
# pip would compile on one core; COMPILE does it afterwards, on all.
INSTALL = (*PIP, "install", "--no-deps", "--no-compile", "--progress-bar", "off")
COMPILE = ("-m", "compileall", "-q", "-j", "0")


class Environment:
    """One virtual environment of the project at `root`: `.venv`, or `.venv-compat-0.28` and the like."""

    def __init__(self, root: Path, name: str, lock_name: str) -> None:
        self.root = root
        self.folder = root / name
        self.python = self.folder / "bin" / "python"
        self.lock = root / "builder" / "requirements" / f"{lock_name}.lock"
        self._temporary = root / ".cache" / "tmp"

    def is_ready(self) -> bool:
        """Whether the environment was set up to its end with today's lock and project file."""
        return self.python.exists() and self._stamp() == self._wanted_stamp()

    def set_up(self, console: Console, base_python: Path) -> None:
        """Do what is missing. Raises SetupError with one line."""
        check_disk(self.root, size_of(self.folder))
        with console.phase(f"environment {self.folder.name}"):
            self._create(console, base_python)
        pinned = pins(self.lock.read_text())
        with console.phase(f"{len(pinned)} packages"):
            self._forget_half_installed()
            self._remove_dropped(console, pinned)
            self.run(console, [*INSTALL, f"pip=={pinned['pip']}"], "installing pip")
            self._install_torch(console, pinned)
            everything = [*INSTALL, "-r", str(self.lock)]
            self.run(console, everything, "installing packages", awaited=pinned)
            self._compile(console)
        with console.phase("worker-vllm"):
            project = [*INSTALL, "--no-build-isolation", "--editable", str(self.root)]
            self.run(console, project, "installing worker-vllm")
        with console.phase("check of vLLM, uvloop and runpod"):
            self._check(console)
        self._write_stamp()

    def run(
        self,
        console: Console,
        arguments: Iterable[str],
        doing: str,
        *,
        awaited: Collection[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> str:
        """Run this environment's Python; what it writes comes back. Raises SetupError when it fails.

        `awaited` names the packages that it brings, where their number says how far it has come.
        """
        try:
            return self._run(console, arguments, doing, awaited, variables)
        except CommandFailed as failure:
            raise explain(failure, doing) from failure

    def installed(self) -> dict[str, Path]:
        """The metadata folder of each package, by its name as pip's index spells it."""
        folders = self.folder.glob("lib/python*/site-packages/*.dist-info")
        return {normal(folder.name.split("-")[0]): folder for folder in folders}

    def _run(
        self,
        console: Console,
        arguments: Iterable[str],
        label: str,
        awaited: Collection[str] = (),
        variables: Mapping[str, str] | None = None,
    ) -> str:
        self._temporary.mkdir(parents=True, exist_ok=True)
        return console.run(
            [str(self.python), *arguments],
            label=label,
            cwd=self.root,
            variables={"TMPDIR": str(self._temporary), **(variables or {})},
            progress=(lambda: self._progress(awaited)) if awaited else None,
        )

    def _progress(self, awaited: Collection[str]) -> str:
        return f"{len(self.installed().keys() & set(awaited))} of {len(awaited)} installed"

    def _create(self, console: Console, base_python: Path) -> None:
        if self.python.exists():
            try:
                version = self._run(console, ["-c", VERSION], "looking at Python").strip()
                if version != "3.11":
                    raise SetupError(f"{self.folder.name} has Python {version}, not 3.11: run `make clean`.")
                self._run(console, [*PIP, "--version"], "looking for pip")
                return
            except CommandFailed:
                console.say(f"{self.folder.name} is incomplete; making it again over what is there")
        doing = f"making {self.folder.name}"
        try:
            console.run([str(base_python), "-m", "venv", str(self.folder)], label=doing, cwd=self.root)
        except CommandFailed as failure:
            raise explain(failure, doing) from failure

    def _forget_half_installed(self) -> None:
        """Remove the metadata of packages that pip was writing when it was killed.

        pip lists its own INSTALLER mark in RECORD as its very last act. Without that, pip would take the
        package for installed although files are missing.
        """
        for folder in self.installed().values():
            record = folder / "RECORD"
            if not record.exists() or "/INSTALLER," not in record.read_text():
                shutil.rmtree(folder)

    def _remove_dropped(self, console: Console, pinned: dict[str, str]) -> None:
        """Uninstall what the last lock brought and this one does not; what a developer added stays."""
        before = pins(self._stamp().get("lock", ""))
        dropped = sorted((before.keys() - pinned.keys()) & self.installed().keys())
        if dropped:
            self.run(console, [*PIP, "uninstall", "--yes", *dropped], "removing packages")

    def _install_torch(self, console: Console, pinned: dict[str, str]) -> None:
        """Install torch alone and first, from PyTorch's own index only where the configured ones lack it."""
        requirement = f"torch=={pinned['torch']}"
        doing = f"installing {requirement}"
        try:
            self._run(console, [*INSTALL, requirement], doing)
        except CommandFailed as failure:
            if not no_such_release(failure.output):
                raise explain(failure, doing) from failure
            console.say(f"{requirement} is not on the configured indexes; trying PyTorch's CPU index")
            self.run(
                console,
                [*INSTALL, "--extra-index-url", TORCH_INDEX, requirement],
                f"{doing} from {TORCH_INDEX}",
            )

    def _compile(self, console: Console) -> None:
        """Compile all modules now: where PYTHONDONTWRITEBYTECODE is set, every start would do it again.

        vLLM then takes twice as long to start. Some packages carry files that are no Python, templates for
        instance; that they do not compile is no failure.
        """
        for folder in self.folder.glob("lib/python*/site-packages"):
            with suppress(CommandFailed):
                self._run(console, [*COMPILE, str(folder)], "compiling modules")

    def _check(self, console: Console) -> None:
        try:
            self._run(console, ["-c", CHECK], "importing vLLM")
        except CommandFailed as failure:
            raise SetupError(
                f"The installed packages do not work together: {last_line(failure.output)}"
                f" (from `{CHECK}`; is something in {self.folder.name} that {self.lock.name} does not name?)"
            ) from failure

    def _wanted_stamp(self) -> dict[str, str]:
        project = hashlib.sha256((self.root / "pyproject.toml").read_bytes()).hexdigest()
        return {"lock": self.lock.read_text(), "project": project}

    def _stamp(self) -> dict[str, str]:
        try:
            stamp = json.loads((self.folder / STAMP_NAME).read_text())
        except (OSError, ValueError):
            return {}
        return stamp if isinstance(stamp, dict) else {}

    def _write_stamp(self) -> None:
        draft = self.folder / f"{STAMP_NAME}.part"
        draft.write_text(json.dumps(self._wanted_stamp()))
        draft.replace(self.folder / STAMP_NAME)


def pins(lock: str) -> dict[str, str]:
    """Each package of a lock's text and its version, in the lock's order."""
    lines = (line.split("#")[0].strip() for line in lock.splitlines())
    return {normal(name): version for name, _, version in (line.partition("==") for line in lines if line)}


def normal(name: str) -> str:
    """A package's name as indexes compare it: lower case, runs of `-`, `_` and `.` as one `-`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def no_such_release(output: str) -> bool:
    """Whether pip reached its indexes and none had the release, as opposed to reaching none."""
    return "No matching distribution found" in output and not network_failed(output)
