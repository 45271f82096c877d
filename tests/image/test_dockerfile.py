"""The Dockerfile, parsed: nothing is built here, for lack of a Docker engine."""

from __future__ import annotations

import re
import subprocess
import sys
from fnmatch import fnmatch
from pathlib import Path

import pytest

import worker_vllm
from builder.packages import TORCH_INDEX
from tests.image.dockerfile import DOCKERFILE, ROOT, declared, stages, steps
from worker_vllm import cli
from worker_vllm.models.cache import RUNPOD_CACHE

LINTER = Path(sys.executable).with_name("hadolint")
ALLOWED = [
    line.removeprefix("!") for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
]
# worker-contract.md E: what people pass to `docker build` today
KNOWN_ARGUMENTS = {
    "MODEL_NAME",
    "MODEL_REVISION",
    "TOKENIZER_NAME",
    "TOKENIZER_REVISION",
    "QUANTIZATION",
    "BASE_PATH",
    "VLLM_VERSION",
}


def test_hadolint_has_nothing_to_say() -> None:
    done = subprocess.run([LINTER, "--no-color", DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_exists_and_is_in_the_build_context() -> None:
    sources = [source for name in ("COPY", "RUN") for step in steps(name) for source in step.sources]
    assert len(sources) > 3
    for source in sources:
        assert (ROOT / source).exists(), source
        assert any(fnmatch(source, allowed) for allowed in ALLOWED), source


def test_the_build_context_holds_nothing_that_is_not_used() -> None:
    sources = {source for name in ("COPY", "RUN") for step in steps(name) for source in step.sources}
    assert sources | {"Dockerfile"} == set(ALLOWED)


def test_a_stage_takes_only_from_stages_above_it() -> None:
    above: list[str] = []
    for stage in stages().values():
        for step in stage.all("COPY"):
            assert step.flag("from") in (None, *above)
        above.append(stage.name)
    assert above == ["base-gpu", "base-cpu", "base", "bake", "worker"]
    assert [stages()[f"base-{build}"].name for build in ("gpu", "cpu")] == ["base-gpu", "base-cpu"]
    assert (stages()["base"].base, declared()["BUILD"]) == ("base-${BUILD}", "gpu")


def test_the_gpu_image_stands_on_vllms_own_whose_digest_can_be_given() -> None:
    assert stages()["base-gpu"].base == "${VLLM_IMAGE}"
    assert declared()["VLLM_IMAGE"] == "vllm/vllm-openai:${VLLM_VERSION}"


def test_arguments_that_people_pass_are_there() -> None:
    assert declared().keys() >= KNOWN_ARGUMENTS


def test_arguments_repeat_what_the_code_says() -> None:
    assert declared()["WORKER_VERSION"] == worker_vllm.__version__
    assert declared()["TORCH_INDEX"] == TORCH_INDEX


def test_the_caches_lie_where_the_worker_looks_for_them() -> None:
    (environment,) = (step.pairs for step in stages()["base"].all("ENV"))
    filled = {name: value.replace("${BASE_PATH}", "/runpod-volume") for name, value in environment.items()}
    assert declared()["BASE_PATH"] == "/runpod-volume"
    for name in ("HF_HOME", "HUGGINGFACE_HUB_CACHE"):
        assert filled[name] == f"/{RUNPOD_CACHE}"
    assert filled["PYTHONPATH"] == "/src"


def test_the_container_runs_the_worker_and_its_check() -> None:
    worker = stages()["worker"]
    (entry,), (check,) = worker.all("ENTRYPOINT"), worker.all("HEALTHCHECK")
    assert entry.words == ("python3", "/src/handler.py")
    assert (ROOT / "src" / "handler.py").exists()
    assert check.words == ("CMD", "worker-vllm", "health")
    assert "health" in cli.VERBS
    (environment,) = (step.pairs for step in stages()["base"].all("ENV"))
    assert environment["WORKER_STATE_FILE"].startswith("/tmp/"), "writable whoever the user is"


def test_a_change_of_the_code_installs_nothing_and_moves_no_weights() -> None:
    for stage in stages().values():
        code = [i for i, step in enumerate(stage.steps) if step.name == "COPY" and "/src" in step.words]
        installs = [i for i, step in enumerate(stage.steps) if "pip install" in " ".join(step.words)]
        assert not (code and installs)
    worker = stages()["worker"]
    assert worker.position("COPY", "/models") < worker.position("COPY", "/src")
    labels = worker.position("LABEL")
    assert labels > worker.position("RUN", "compileall")


def test_nothing_of_vllms_moves() -> None:
    (install,) = [step.words[0] for step in stages()["base-gpu"].all("RUN") if "pip" in step.words[0]]
    assert "--no-deps" in install


def test_labels_name_the_versions() -> None:
    labels = {name: value for step in steps("LABEL") for name, value in step.pairs.items()}
    assert labels["org.opencontainers.image.version"] == "${WORKER_VERSION}"
    assert labels["org.opencontainers.image.revision"] == "${REVISION}"
    assert labels["ai.vllm.version"] == "${VLLM_VERSION}"
    (base,) = (step.pairs for step in stages()["base-gpu"].all("LABEL"))
    assert base["org.opencontainers.image.base.name"] == stages()["base-gpu"].base


def test_a_variable_that_a_stage_uses_is_declared_in_it() -> None:
    """An ARG before the first FROM, or of another stage, is empty here."""
    known: dict[str, set[str]] = {}
    for stage in stages().values():
        names = set(known.get(stage.base, ())) | (
            known["base-gpu"] if stage.base == "base-${BUILD}" else set()
        )
        arguments: set[str] = set()
        for step in stage.steps:
            used = set(re.findall(r"\$\{(\w+)\}", " ".join(step.words)))
            assert used <= names | arguments, f"line {step.line}: {used}"
            if step.name == "ARG":
                arguments.add(step.words[0].partition("=")[0])
            if step.name == "ENV":
                names |= step.pairs.keys()
        known[stage.name] = names


@pytest.mark.parametrize("kind", ["ARG", "ENV", "LABEL"])
def test_no_secret_is_kept_in_the_image(kind: str) -> None:
    words = " ".join(word for step in steps(kind) for word in step.words)
    assert not re.search(r"HF_TOKEN|API_KEY|PASSWORD|SECRET", words)
    (bake,) = stages()["bake"].all("RUN")
    assert bake.flag("mount") == "type=secret,id=HF_TOKEN"
