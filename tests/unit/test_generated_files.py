"""What `worker-vllm settings --docs` and `--hub` write: up to date, valid, harmless when untouched."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from tests.configurations import configure, table
from worker_vllm import forms
from worker_vllm.forms.catalog import ENGINE_GROUPS, OF_THE_IMAGE, WORKER_GROUPS
from worker_vllm.forms.console import console_form
from worker_vllm.forms.entries import Entry, first_sentences, groups
from worker_vllm.forms.hub import form_default, hub_form, hub_tests
from worker_vllm.forms.presets import PRESETS
from worker_vllm.job import JobInput
from worker_vllm.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
FILES = {**forms.documents(table()), **forms.hub_files(table())}

# runpod-platform.md 5.2 and 5.3
HUB_KEYS = {"title", "description", "type", "category", "iconUrl", "config"}
CONFIG_KEYS = {
    "runsOn",
    "endpointType",
    "containerDiskInGb",
    "cpuFlavor",
    "gpuCount",
    "gpuIds",
    "allowedCudaVersions",
    "presets",
    "env",
}
INPUT_KEYS = {
    "name",
    "type",
    "description",
    "default",
    "required",
    "advanced",
    "options",
    "min",
    "max",
    "trueValue",
    "falseValue",
}
INPUT_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "number": (int, float),
    "boolean": bool,
    "huggingface": str,
}
TESTS_CONFIG_KEYS = {"gpuTypeId", "gpuCount", "cpuFlavor", "env", "allowedCudaVersions"}


def entries() -> Iterator[Entry]:
    for _, members in groups(table()):
        yield from members


def inputs() -> dict[str, dict[str, Any]]:
    return {entry["key"]: entry["input"] for entry in hub_form(table())["config"]["env"]}


def sent_by_the_form() -> dict[str, str]:
    """What an untouched form puts into the environment, with the blanks that it may send too."""
    sent = {key: content.get("default", "") for key, content in inputs().items()}
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in sent.items()}


@pytest.mark.parametrize("path", FILES, ids=str)
def test_the_file_on_disk_is_what_the_code_writes(path: PurePosixPath) -> None:
    """`worker-vllm settings --docs --hub` writes them again."""
    assert (ROOT / path).read_text() == FILES[path]


def test_the_hubs_form_has_only_keys_of_its_schema() -> None:
    content = hub_form(table())
    assert content.keys() <= HUB_KEYS
    assert content.keys() >= HUB_KEYS - {"iconUrl"}
    assert content["config"].keys() <= CONFIG_KEYS
    for entry in content["config"]["env"]:
        assert entry.keys() == {"key", "input"}
        assert entry["input"].keys() <= INPUT_KEYS


def test_every_input_of_the_hubs_form_has_a_known_type_and_a_default_of_it() -> None:
    for key, content in inputs().items():
        expected = INPUT_TYPES[content["type"]]
        assert isinstance(
            content.get("default", expected() if isinstance(expected, type) else 0), expected
        ), key
        assert content["name"]
        assert content["description"]
        if "options" in content:
            assert content["type"] == "string"
            values = [option["value"] for option in content["options"]]
            assert len(set(values)) == len(values)
            assert content["default"] in values
            assert all(option.keys() == {"label", "value"} for option in content["options"])


def test_the_model_is_the_only_required_input_and_the_only_one_in_front() -> None:
    assert {key for key, content in inputs().items() if content["required"]} == {"MODEL_NAME"}
    assert {key for key, content in inputs().items() if not content["advanced"]} == {"MODEL_NAME"}
    assert inputs()["MODEL_NAME"]["type"] == "huggingface"
    assert "default" not in inputs()["MODEL_NAME"]


def test_no_variable_is_offered_twice_and_no_token_at_all() -> None:
    """The Hub's own field for the model writes HF_TOKEN where a repository is gated."""
    offered = [entry.variable for entry in entries()]
    assert len(set(offered)) == len(offered)
    assert "HF_TOKEN" not in offered


def test_an_untouched_form_changes_no_default_of_vllm_and_warns_of_nothing() -> None:
    resolved = configure(sent_by_the_form() | {"MODEL_NAME": "org/model"})
    stated = {entry.variable for entry in entries() if entry.reason}
    for name, effective in resolved.chosen().items():
        default = table().by_name[name].default
        # an object of vLLM's config classes at its own defaults has no plain form
        same = effective.value == default or (not effective.value and not default)
        assert same or effective.variable in stated or name in ("model", "served_model_name")
    assert resolved.warnings == ()
    assert resolved.worker == WorkerSettings()


def test_a_default_of_the_form_that_differs_has_a_stated_reason() -> None:
    for entry in entries():
        default = form_default(entry)
        if default in (None, "") or (entry.type == "choice" and str(entry.own_default) == default):
            continue
        assert default == entry.own_default or entry.reason, entry.variable


def test_choices_are_those_of_the_installed_vllm() -> None:
    by_variable = {entry.variable: entry for entry in entries()}
    assert set(by_variable["TOOL_CALL_PARSER"].choices) == {"", *table().registries["tool_call_parser"]}
    assert set(by_variable["REASONING_PARSER"].choices) == {"", *table().registries["reasoning_parser"]}
    assert set(by_variable["QUANTIZATION"].choices) == {"", *table().registries["quantization"]}
    assert set(by_variable["KV_CACHE_DTYPE"].choices) == set(table().by_name["kv_cache_dtype"].choices)


@pytest.mark.parametrize("preset", PRESETS, ids=lambda preset: preset["name"])
def test_each_preset_resolves_without_a_warning(preset: dict[str, Any]) -> None:
    assert preset.keys() == {"name", "defaults"}
    assert preset["defaults"].keys() <= inputs().keys()
    texts = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in preset["defaults"].items()
    }
    assert configure(sent_by_the_form() | texts).warnings == ()


def test_every_worker_setting_is_offered_once() -> None:
    offered = [item.name for group in WORKER_GROUPS for item in group.items]
    assert sorted(offered) == sorted(WorkerSettings.model_fields)


def test_no_form_offers_what_the_image_sets() -> None:
    offered = inputs().keys() | console_form(table())["schema"].keys()
    assert not offered & OF_THE_IMAGE


def test_every_argument_of_the_catalog_is_one_of_vllm() -> None:
    assert {item.name for group in ENGINE_GROUPS for item in group.items} <= table().by_name.keys()


def test_the_hubs_tests_have_only_keys_of_their_schema() -> None:
    content = hub_tests()
    assert content.keys() == {"tests", "config"}
    assert content["config"].keys() <= TESTS_CONFIG_KEYS
    for test in content["tests"]:
        assert test.keys() == {"name", "input", "timeout"}
        assert isinstance(test["timeout"], int)


@pytest.mark.parametrize("test", hub_tests()["tests"], ids=lambda test: test["name"])
def test_the_hubs_tests_are_jobs_that_the_worker_takes(test: dict[str, Any]) -> None:
    assert JobInput.parse(test["input"])


def test_the_hubs_tests_cover_native_chat_streaming_and_models() -> None:
    jobs = [test["input"] for test in hub_tests()["tests"]]
    assert {"prompt": "Hello World"} in jobs
    assert any(job.get("stream") for job in jobs)
    assert any(job.get("openai_input", {}).get("stream") for job in jobs)
    assert {job.get("openai_route") for job in jobs} >= {"/v1/chat/completions", "/v1/models"}


def test_the_consoles_form_has_the_shape_of_its_predecessors() -> None:
    content = console_form(table())
    assert content.keys() == {"versions", "schema"}
    (version,) = content["versions"].values()
    assert version.keys() == {"imageName", "minimumCudaVersion", "categories"}
    listed = [key for category in version["categories"] for key in category["settings"]]
    assert sorted(listed) == sorted(content["schema"])
    for key, setting in content["schema"].items():
        assert setting["env_var_name"] == key
        assert setting["required"] is False
        assert setting["type"] in ("text", "select", "toggle", "number")
        assert ("options" in setting) is (setting["type"] == "select")
        assert not {"MODEL_NAME", "HF_TOKEN"} & {key}


def test_both_forms_offer_the_same() -> None:
    assert set(console_form(table())["schema"]) | {"MODEL_NAME"} == set(inputs())


def test_both_forms_are_json_without_special_numbers() -> None:
    json.dumps([hub_form(table()), console_form(table()), hub_tests()], allow_nan=False)


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("One. Two. Three.", "One. Two."),
        ("Kinds: - `a` is this. - `b` is that.", "Kinds."),
        ("See [the docs](https://x.y/z). Then.", "See the docs."),
        (
            "A single sentence that is longer than the limit.",
            "A single sentence that is longer than the limit.",
        ),
    ],
)
def test_help_is_cut_at_a_sentence(text: str, short: str) -> None:
    assert first_sentences(text, length=14) == short
