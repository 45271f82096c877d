"""Configurations for tests: resolved against a recorded vLLM, on a machine and a file system of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from worker_vllm import vllm_table
from worker_vllm.configuration import Configuration, Machine, resolve
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.errors import ConfigurationError

DATA = Path(__file__).parent / "data"
VERSIONS = ("0.26.0", "0.28.0", "0.30.0", "0.32.0", "0.33.0")
DEFAULT_VERSION = "0.32.0"
FORMS = ("console-2025", "hub-2025", "hub-old", "hub-new")

GPU = Machine("gpu", gpus=1, free_memory=64 * 1024**3)
CPU = Machine("cpu", free_memory=8 * 1024**3)

NOWHERE = Path("/nonexistent")


@cache
def table(version: str = DEFAULT_VERSION) -> ArgumentTable:
    """The recorded arguments of one vLLM."""
    recorded = DATA / f"vllm-fields-{version}.json"
    if not recorded.is_file():
        recorded = Path(vllm_table.__file__).parent / vllm_table.RECORDS / f"{version}.json"
    return ArgumentTable.model_validate_json(recorded.read_bytes())


@cache
def form(name: str) -> dict[str, str]:
    """What a form sends if nobody touches it."""
    content: dict[str, dict[str, str]] = json.loads((DATA / f"form-{name}.json").read_text())
    return content["environment"]


def configure(
    environ: Mapping[str, str] | None = None,
    *,
    version: str = DEFAULT_VERSION,
    machine: Machine = GPU,
    root: Path = NOWHERE,
    heads: int | None = 32,
    config: Mapping[str, Any] | None = None,
    **variables: str,
) -> Configuration:
    """Resolve `environ` and `variables`, with a model unless they name one."""
    if config is None and heads is not None:
        config = {"num_attention_heads": heads}
    return resolve(
        {"MODEL_NAME": "org/model", **(environ or {}), **variables},
        table=table(version),
        this_machine=machine,
        root=root,
        read_model_config=lambda model, revision: config,
    )


def problems(environ: Mapping[str, str] | None = None, **options: Any) -> tuple[str, ...]:
    """What makes a configuration fail; it must fail."""
    with pytest.raises(ConfigurationError) as caught:
        configure(environ, **options)
    return caught.value.problems


def value(name: str, environ: Mapping[str, str] | None = None, **options: Any) -> Any:
    """The effective value of one of vLLM's arguments."""
    resolved = configure(environ, **options)
    return {**resolved.engine, **resolved.frontend}[name].value


def warnings_about(word: str, resolved: Configuration) -> list[str]:
    """The warnings that speak of `word`."""
    return [line for line in resolved.warnings if word in line]
