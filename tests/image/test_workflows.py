"""The workflows: valid, pinned, without a registry of their own, and calling what there is."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import worker_vllm
from tests.image.dockerfile import ROOT, declared
from tests.image.test_bake_file import blocks

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHECKER = Path(sys.executable).with_name("check-jsonschema")


def by_name(path: Path) -> str:
    return path.stem


def steps(path: Path) -> Iterator[dict[str, Any]]:
    for job in yaml.safe_load(path.read_text())["jobs"].values():
        yield from job["steps"]


def scripts(path: Path) -> list[str]:
    return [step["run"] for step in steps(path) if "run" in step]


def test_the_workflows_are_tests_the_image_and_the_newest_vllm() -> None:
    assert [path.stem for path in WORKFLOWS] == ["image", "tests", "vllm"]


def test_each_is_a_workflow_by_its_schema() -> None:
    """SchemaStore's, which knows no expressions."""
    done = subprocess.run(
        [CHECKER, "--builtin-schema", "vendor.github-workflows", *WORKFLOWS],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("path", WORKFLOWS, ids=by_name)
def test_actions_are_githubs_own_and_pinned_to_a_commit(path: Path) -> None:
    for step in steps(path):
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", step["uses"]), step["uses"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=by_name)
def test_a_job_may_do_little_and_not_for_ever(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"]["contents"] == "read"
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())


@pytest.mark.parametrize("path", WORKFLOWS, ids=by_name)
def test_scripts_are_bash_and_take_what_others_write_from_variables(path: Path) -> None:
    """A `${{ }}` within a script is put into its text before the shell reads it."""
    for script in scripts(path):
        assert "${{" not in script
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=by_name)
def test_what_scripts_call_is_there(path: Path) -> None:
    text = "\n".join(scripts(path))
    for module in re.findall(r"-m (builder\.\w+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists()
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z-]+)", text)) <= set(targets)
    for command in re.findall(r"^\.ci/\w+", text, re.MULTILINE):
        assert (ROOT / command).exists()


def test_secrets_and_places_come_from_the_repositorys_settings() -> None:
    text = "\n".join(path.read_text() for path in WORKFLOWS)
    assert set(re.findall(r"secrets\.(\w+)", text)) == {"REGISTRY_USERNAME", "REGISTRY_TOKEN"}
    assert set(re.findall(r"vars\.(\w+)", text)) == {"REGISTRY", "IMAGE", "IMAGE_RUNNER"}
    assert not re.search(r"\b(ghcr\.io|docker\.io|quay\.io|gcr\.io|amazonaws|azurecr)\b", text)


def test_the_image_is_built_with_variables_of_the_bake_file() -> None:
    text = "\n".join(scripts(ROOT / ".github" / "workflows" / "image.yml"))
    given = {"VLLM_VERSION", "VLLM_IMAGE", "WORKER_VERSION", "IMAGE", "TAG", "REVISION", "SOURCE"}
    assert given <= blocks("variable").keys()
    assert all(re.search(rf"\b{name}=", text) for name in given)
    assert "buildx bake gpu" in text


@pytest.mark.parametrize(
    ("workflow", "source", "found"),
    [
        ("image.yml", "src/worker_vllm/__init__.py", worker_vllm.__version__),
        ("image.yml", "Dockerfile", declared()["VLLM_VERSION"]),
        ("vllm.yml", "Dockerfile", str(declared()["VLLM_VERSION"]).removeprefix("v")),
    ],
)
def test_a_version_is_found_where_a_script_looks_for_it(workflow: str, source: str, found: str) -> None:
    text = "\n".join(scripts(ROOT / ".github" / "workflows" / workflow))
    commands = re.findall(rf"sed -n '[^']+' {re.escape(source)}", text)
    assert commands
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == found
