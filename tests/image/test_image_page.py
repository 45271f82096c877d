"""docs/image.md names what there is."""

from __future__ import annotations

import re

import pytest

from tests.documents import ROOT, rows, section
from tests.image.dockerfile import declared
from tests.image.test_bake_file import blocks
from worker_vllm import cli
from worker_vllm.engine import caches

PAGE = ROOT / "docs" / "image.md"
TEXT = PAGE.read_text()


def in_code(cells: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cells)


def test_every_build_argument_is_told_with_its_default() -> None:
    told = {
        name: default
        for cells in rows(section(PAGE, "## Building"))
        for name in in_code(cells[0])
        for default in [cells[1]]
    }
    internal = {"PYTHON_IMAGE", "TORCH_INDEX"}
    assert told.keys() == declared().keys() - internal
    for name, default in told.items():
        if default:
            assert in_code(default) == [declared()[name]], name


def test_arguments_and_targets_in_commands_exist() -> None:
    assert set(re.findall(r"--build-arg (\w+)", TEXT)) <= declared().keys()
    assert set(re.findall(r"buildx bake (\w+)", TEXT)) <= blocks("target").keys()


def test_verbs_exist() -> None:
    verbs = set(re.findall(r"`worker-vllm ([a-z]+)|entrypoint worker-vllm \S+ ([a-z]+)", TEXT))
    assert {one or other for one, other in verbs} <= cli.VERBS.keys()


def test_every_cache_is_told() -> None:
    told = [
        name for cells in rows(section(PAGE, "## Caches on a network volume")) for name in in_code(cells[0])
    ]
    assert sorted(told) == sorted(caches.VARIABLES)
    assert f"{caches.FOLDER}/vllm-VERSION/GPU" in TEXT


def test_settings_of_the_release_workflow_are_told() -> None:
    workflow = (ROOT / ".github" / "workflows" / "image.yml").read_text()
    for name in re.findall(r"(?:vars|secrets)\.(\w+)", workflow):
        assert f"`{name}`" in TEXT


@pytest.mark.parametrize("name", ["image.md", "upgrading.md", "models.md"])
def test_links_lead_somewhere(name: str) -> None:
    page = ROOT / "docs" / name
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target
