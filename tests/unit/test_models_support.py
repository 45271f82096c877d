"""Whether vLLM can run a model, told from config.json and vLLM's sources, without importing it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from worker_vllm import vllm_architectures
from worker_vllm.models import ModelFacts, Weights, support
from worker_vllm.vllm_architectures import Architectures

OWN = {"AutoConfig": "configuration_own.C", "AutoModelForCausalLM": "modeling_own.M"}


def known(plugins: tuple[str, ...] = ()) -> Architectures:
    return Architectures(
        supported=frozenset({"LlamaForCausalLM", "Llama4ForCausalLM", "Qwen2ForCausalLM", "BertModel"}),
        dropped={"Phi3SmallForCausalLM": "0.9.2"},
        elsewhere={"BartModel": "https://example.org/bart-plugin"},
        model_types=frozenset({"chatglm"}),
        plugins=plugins,
        _transformers='("llama", "LlamaConfig"), ("bart", "BartModel"), ("cwm", "CwmForCausalLM"), "qwen2"',
    )


def problems(
    config: Mapping[str, Any], kind: Any = "safetensors", plugins: tuple[str, ...] = (), **options: Any
) -> list[str]:
    facts = ModelFacts("org/m", "hub", config=config, weights=Weights(kind, {"w": 1}))
    return support.problems(facts, known=known(plugins), **options)


@pytest.mark.parametrize(
    "config",
    [
        {"architectures": ["LlamaForCausalLM"]},
        {"architectures": ["LlamaForSequenceClassification"]},  # vLLM converts it
        {"architectures": ["Unknown", "Qwen2ForCausalLM"]},
        {"architectures": ["CwmForCausalLM"]},  # by transformers' own class
        {"architectures": []},
        {},
        {"architectures": "LlamaForCausalLM"},
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "auto_map": OWN},
        {"architectures": ["Qwen2ForCausalLM"], "model_type": "chatglm", "auto_map": OWN},
    ],
)
def test_a_known_model_has_no_problem(config: Mapping[str, Any]) -> None:
    assert problems(config) == []


def test_an_unknown_class_is_told_its_nearest_neighbours() -> None:
    (problem,) = problems({"architectures": ["Lama3ForCausalLM"]})
    assert problem.startswith("org/m is a Lama3ForCausalLM, which neither vLLM nor transformers has")
    assert "(nearest: LlamaForCausalLM, Llama4ForCausalLM" in problem


def test_a_family_that_nothing_reads_is_told_its_nearest_neighbour() -> None:
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "lama"}
    (problem,) = problems(config)
    assert "org/m is of the family lama (model_type), which neither vLLM nor transformers" in problem
    assert "(nearest: llama)" in problem
    assert problems(config, plugins=("a-plugin",)) == []
    assert problems(config, overrides={"model_type": "llama"}) == []
    assert problems(config, trust_remote_code=True, overrides={"auto_map": OWN}) == []


@pytest.mark.parametrize(
    ("names", "runs"),
    [
        (["LlamaForCausalLM"], None),
        (["LlamaForSequenceClassification"], None),
        (["CwmForCausalLM"], "CwmForCausalLM"),
    ],
)
def test_what_transformers_runs_for_vllm_is_told(
    monkeypatch: pytest.MonkeyPatch, names: list[str], runs: str | None
) -> None:
    monkeypatch.setattr(vllm_architectures, "installed", known)
    monkeypatch.setattr(vllm_architectures, "surely_runs", lambda _: False)
    facts = ModelFacts("org/m", "hub", config={"architectures": names})
    assert support.runs_in_transformers(facts) == runs


def test_a_class_that_vllm_dropped_is_told_with_the_last_version() -> None:
    assert "which vLLM dropped after 0.9.2" in problems({"architectures": ["Phi3SmallForCausalLM"]})[0]


def test_a_class_that_a_plugin_has_is_told_with_it() -> None:
    assert "https://example.org/bart-plugin" in problems({"architectures": ["BartModel"]})[0]


def test_nothing_is_said_against_a_class_that_an_installed_plugin_may_bring() -> None:
    assert problems({"architectures": ["NewForCausalLM"]}, plugins=("vllm-new",)) == []


@pytest.mark.parametrize("model_type", ["own", "llama"])
def test_code_of_its_own_needs_trust(model_type: str) -> None:
    config = {"architectures": ["OwnForCausalLM"], "model_type": model_type, "auto_map": OWN}
    (problem,) = problems(config)
    assert problem.endswith("set TRUST_REMOTE_CODE=true")
    assert problems(config, trust_remote_code=True) == []


def test_overrides_count_for_the_configuration() -> None:
    config = {"architectures": ["Nobody"]}
    assert problems(config, overrides={"architectures": ["LlamaForCausalLM"]}) == []


def test_gguf_needs_its_plugin_and_one_file() -> None:
    assert "vllm-gguf-plugin" in problems({}, kind="gguf")[0]
    assert problems({}, kind="gguf", plugins=("vllm-gguf-plugin",)) == []


def test_the_installed_registry_is_read_from_its_source() -> None:
    installed = vllm_architectures.installed()
    assert installed is not None
    assert {"LlamaForCausalLM", "Qwen3ForCausalLM", "BertModel"} <= installed.supported
    assert installed.dropped and installed.elsewhere and installed.model_types
    assert installed.in_transformers("LlamaForCausalLM")
    assert not installed.in_transformers("NoSuchForCausalLM")
    assert vllm_architectures.surely_runs("LlamaForCausalLM")
    assert not vllm_architectures.surely_runs(next(iter(installed.dropped)))
