"""What the models room says of vLLM, against vLLM itself. No engine is started."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from tests import repositories
from worker_vllm import vllm_architectures
from worker_vllm.models import describe

pytestmark = pytest.mark.engine


def test_the_registry_that_is_read_from_sources_is_vllms_own() -> None:
    from vllm.model_executor.models.registry import ModelRegistry

    installed = vllm_architectures.installed()
    assert installed is not None
    assert installed.supported == set(ModelRegistry.get_supported_archs())


def test_every_family_that_transformers_or_vllm_reads_is_known_by_name() -> None:
    families = set(importlib.import_module("transformers").CONFIG_MAPPING.keys())
    families |= set(importlib.import_module("vllm.transformers_utils.config")._CONFIG_REGISTRY)
    assert {family for family in families if not vllm_architectures.surely_reads(family)} == set()


def test_endings_that_vllm_exchanges_are_the_same() -> None:
    from vllm.config.model import iter_architecture_defaults

    suffixes = [suffix for suffix, _ in iter_architecture_defaults()]
    assert suffixes
    assert [vllm_architectures.stem(f"Llama{suffix}") for suffix in suffixes] == ["Llama"] * len(suffixes)


INDEX = {"weight_map": {"a": repositories.SHARDS[0], "b": repositories.SHARDS[1]}}
LAYOUTS: dict[str, repositories.Files] = {
    "sharded beside all else": repositories.sharded(size=10),
    "safetensors without an index": {"a.safetensors": b"x", "b.safetensors": b"x", "c.bin": b"x"},
    "an index that leaves one out": {
        "model.safetensors.index.json": INDEX,
        **dict.fromkeys(repositories.SHARDS, b"x"),
        "extra.safetensors": b"x",
    },
    "mistral's own": {
        "consolidated.safetensors": b"x",
        "model.safetensors.index.json": INDEX,
        **dict.fromkeys(repositories.SHARDS, b"x"),
    },
    "bin with a training run's remains": {"pytorch_model.bin": b"x", "training_args.bin": b"x"},
    "pt": {"model.pt": b"x", "optimizer.pt": b"x"},
}


@pytest.mark.parametrize("load_format", ["auto", "hf", "safetensors", "mistral", "npcache", "pt"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_weights_that_are_selected_are_those_that_vllm_loads(
    layout: str, load_format: str, tmp_path: Path
) -> None:
    from vllm.config import LoadConfig
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    folder = repositories.write(tmp_path, LAYOUTS[layout])
    loader = DefaultModelLoader(LoadConfig(load_format=load_format))
    try:
        _, loaded, *_ = loader._prepare_weights(str(folder), None, None, True, None)
    except RuntimeError:  # it finds none
        loaded = []
    selected = describe.folder(folder, load_format=load_format).weights
    assert set(selected.files) == {Path(path).name for path in loaded}
