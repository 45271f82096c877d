"""Which files of a repository vLLM loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests import repositories
from worker_vllm.models import weights
from worker_vllm.models.facts import Weights


def select(*names: str, load_format: str = "auto", **indexes: Mapping[str, str]) -> Weights:
    def read_json(name: str) -> Mapping[str, Any]:
        return {"weight_map": indexes[name.partition(".")[0]]}

    return weights.select(dict.fromkeys(names, 10), read_json, load_format)


@pytest.mark.parametrize(
    ("names", "load_format", "kind", "chosen"),
    [
        (["model.safetensors", "pytorch_model.bin"], "auto", "safetensors", {"model.safetensors"}),
        (["pytorch_model.bin", "training_args.bin", "x.pt"], "auto", "bin", {"pytorch_model.bin"}),
        (["model.pt", "optimizer.pt"], "auto", "pt", {"model.pt"}),
        (["model.gguf"], "auto", "gguf", {"model.gguf"}),
        (["consolidated.safetensors", "model.safetensors"], "auto", "mistral", {"consolidated.safetensors"}),
        (["consolidated.safetensors", "model.safetensors"], "safetensors", "safetensors", None),
        (["model.safetensors", "pytorch_model.bin"], "npcache", "bin", {"pytorch_model.bin"}),
        (["model.safetensors", "model.pt"], "pt", "pt", {"model.pt"}),
        (["original/model.safetensors"], "auto", None, set()),
        (["config.json"], "auto", None, set()),
    ],
)
def test_one_format_is_loaded(
    names: list[str], load_format: str, kind: str | None, chosen: set[str] | None
) -> None:
    found = select(*names, load_format=load_format)
    assert found.format == kind
    assert set(found.files) == (set(names) if chosen is None else chosen)
    assert found.bytes == 10 * len(found.files)


def test_an_index_decides_between_files_and_names_what_is_missing() -> None:
    index = "model.safetensors.index.json"
    found = select(
        index, "a.safetensors", "other.safetensors", model={"x": "a.safetensors", "y": "b.safetensors"}
    )
    assert set(found.files) == {"a.safetensors"}
    assert found.missing == ("b.safetensors",)
    assert not found.complete


def test_an_index_alone_is_a_model_without_its_weights() -> None:
    found = select("model.safetensors.index.json", model={"x": "a.safetensors"})
    assert (found.format, found.missing, found.complete) == ("safetensors", ("a.safetensors",), False)


def test_a_numbered_shard_tells_of_the_others_without_an_index() -> None:
    found = select("model-00002-of-00003.safetensors")
    assert found.missing == ("model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors")


def test_an_index_that_is_no_index_is_as_none() -> None:
    found = weights.select(
        {"model.safetensors.index.json": 1, "model.safetensors": 5}, lambda _: {"weight_map": 3}
    )
    assert found.complete


def test_what_goes_along_is_neither_other_weights_nor_to_look_at() -> None:
    files = repositories.sharded()
    found = weights.select(dict.fromkeys(files, 1), lambda name: files[name])
    assert set(weights.wanted(files, found)) == repositories.NEEDED


@pytest.mark.parametrize(
    "name",
    [
        "chat_template.jinja",
        "merges.txt",
        "tokenizer.model",
        "modeling_own.py",
        "qwen.tiktoken",
        "tekken.json",
    ],
)
def test_tokenizers_templates_and_code_go_along(name: str) -> None:
    assert name in weights.wanted([name, "model.h5"], Weights())


def test_modules_of_an_embedding_model_bring_their_weights() -> None:
    names = [
        "1_Pooling/config.json",
        "2_Dense/model.safetensors",
        "2_Dense/pytorch_model.bin",
        "x/model.safetensors",
    ]
    assert weights.wanted(names, Weights()) == ("1_Pooling/config.json", "2_Dense/model.safetensors")
