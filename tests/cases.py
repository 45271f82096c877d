"""Cases for the doctor: a well-known shape, settings as an operator gives them, and GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tests.configurations import configure, table
from tests.model_shapes import CONFIGS, WEIGHTS
from worker_vllm import doctor
from worker_vllm.configuration import Machine
from worker_vllm.doctor import Case, Diagnosis, Hardware
from worker_vllm.models import ModelFacts, Weights

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


def facts(name: str, config: Mapping[str, Any] | None = None, **changes: Any) -> ModelFacts:
    """The facts of a well-known model, as the hub's lists give them; or of `config`, its weights unknown."""
    size = WEIGHTS.get(name) if config is None else None
    found = ModelFacts(
        name,
        "hub",
        config=CONFIGS[name] if config is None else config,
        tokenizer_files={"tokenizer.json": 1, "tokenizer_config.json": 1},
        chat_template=TEMPLATE,
        weights=Weights("safetensors", {"model.safetensors": size}) if size else Weights(),
    )
    return replace(found, **changes)


def case(
    name: str,
    gpus: str | Hardware = "1xH100",
    *,
    model: ModelFacts | None = None,
    environ: Mapping[str, str] | None = None,
    **variables: str,
) -> Case:
    """The case of a model on some GPUs, with these variables set."""
    hardware = doctor.asked_for(gpus) if isinstance(gpus, str) else gpus
    model = model or facts(name)
    given = {**(environ or {}), **variables}
    resolved = configure(
        given,
        machine=Machine(hardware.platform, gpus=hardware.count, free_memory=hardware.host_memory),
        config=model.config,
    )
    return doctor.case_of(resolved, model, hardware, given, table())


def examine(name: str, gpus: str | Hardware = "1xH100", **options: Any) -> Diagnosis:
    """The diagnosis of `case` with the same arguments."""
    return doctor.examine(case(name, gpus, **options))


def found(diagnosis: Diagnosis) -> dict[str, str]:
    """Code to level, without those that depend on the packages installed where the tests run."""
    return {f.code: f.level for f in reversed(diagnosis.findings) if f.code != "versions"}


def about(code: str, diagnosis: Diagnosis) -> str:
    """All the text of the first finding with that code."""
    return next(f for f in diagnosis.findings if f.code == code).in_one_line()
