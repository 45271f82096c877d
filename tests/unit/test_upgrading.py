"""docs/upgrading.md: every old variable is in it, and does what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.configurations import DATA, configure, table
from worker_vllm import env_names, settings
from worker_vllm.configuration.translations import SPECULATIVE
from worker_vllm.forms.upgrading import TRANSLATED, variables

ROWS = dict(variables(table()))
OWN = {name for setting in settings.WorkerSettings.model_fields for name in settings.names(setting)[:1]}
FOREIGN = {"PYTORCH_ALLOC_CONF", *env_names.PLACES}


def today(name: str) -> str:
    return next(text for row, text in ROWS.items() if row.partition("=")[0] == name)


def forms() -> set[str]:
    """The variables of all forms that earlier workers had."""
    return {name for path in DATA.glob("form-*.json") for name in json.loads(path.read_text())["environment"]}


def test_a_variable_of_an_old_form_means_what_it_meant_or_is_in_the_table() -> None:
    mean_the_same = {name for argument in table().arguments for name in argument.variables[:1]}
    mean_the_same |= OWN | FOREIGN | set(table().environment)
    told = {row.partition("=")[0] for row in ROWS}
    assert len(forms()) > 80
    assert forms() - mean_the_same - told == set()


def test_every_translation_is_told() -> None:
    assert TRANSLATED.keys() == env_names.TRANSLATED
    assert SPECULATIVE.keys() < env_names.TRANSLATED


@pytest.mark.parametrize("name", sorted(name for name, text in ROWS.items() if text.startswith("no effect")))
def test_a_variable_without_effect_changes_nothing_and_is_named(name: str) -> None:
    plain, with_it = configure(), configure(**{name: "1"})
    assert with_it.chosen() == plain.chosen()
    assert any(name in warning for warning in with_it.warnings)


@pytest.mark.parametrize("row", sorted(row for row, text in ROWS.items() if text.startswith("not chosen")))
def test_a_value_that_counts_as_not_chosen_changes_nothing(row: str) -> None:
    name, _, value = row.partition("=")
    assert configure(**{name: value}).chosen() == configure().chosen()
    assert configure(**{name: value}).worker == configure().worker


@pytest.mark.parametrize(
    ("name", "value", "argument", "is_now"),
    [
        ("TASK", "embed", "runner", "pooling"),
        ("WORKER_USE_RAY", "true", "distributed_executor_backend", "ray"),
        ("DISABLE_MM_PREPROCESSOR_CACHE", "true", "mm_processor_cache_gb", 0),
        ("GUIDED_DECODING_BACKEND", "xgrammar", "structured_outputs_config", {"backend": "xgrammar"}),
        (
            "SPECULATIVE_MODEL",
            "org/eagle3",
            "speculative_config",
            {"method": "eagle3", "model": "org/eagle3"},
        ),
    ],
)
def test_a_translated_variable_becomes_what_is_told(
    name: str, value: str, argument: str, is_now: Any
) -> None:
    assert configure(**{name: value}).chosen()[argument].value == is_now
    assert argument.upper() in today(name) or is_now == "pooling"
