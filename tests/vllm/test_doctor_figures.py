"""The doctor's arithmetic against vLLM's own: shapes, state sizes, KV cache groups. No engine is started, but
importing as much of vLLM as this takes is as slow."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.model_shapes import CONFIGS
from worker_vllm.doctor import cache_plan, shape
from worker_vllm.doctor.layers import CacheLayers

pytestmark = pytest.mark.engine

LENGTH = 20_000
IN_FLIGHT = 4096
BLOCK = 16


def load(module: str) -> Any:
    importlib.import_module("vllm.config")  # its parts import each other in a circle
    return importlib.import_module(f"vllm.{module}")


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"bge-large"}))
def test_the_shape_is_the_one_that_vllm_reads(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIGS[name]))
    config = importlib.import_module("transformers").AutoConfig.from_pretrained(tmp_path)
    text = load("transformers_utils.config").get_hf_text_config(config)
    theirs = load("transformers_utils.model_arch_config_convertor").ModelArchConfigConvertorBase(config, text)
    ours = shape.read(CONFIGS[name])
    assert ours.heads == theirs.get_total_num_attention_heads()
    assert ours.kv_heads == theirs.get_total_num_kv_heads()
    assert ours.layers == theirs.get_num_hidden_layers()
    assert ours.hidden == theirs.get_hidden_size()
    assert ours.vocabulary == theirs.get_vocab_size()
    assert ours.mla == theirs.is_deepseek_mla()
    assert ours.experts == theirs.get_num_experts() or not ours.experts_per_token
    kept = [layers for layers in ours.caches if layers.kind != "state"]
    assert {layers.width // (1 if ours.mla else 2) for layers in kept} == {theirs.get_head_size()}
    length, _ = theirs.derive_max_model_len_and_key()
    assert ours.max_length == length


@pytest.mark.parametrize("gpus", [1, 2, 8])
@pytest.mark.parametrize("name", ["nemotron-h-8b", "granite-4.0-h-small", "jamba-1.5-mini", "qwen3-next-80b"])
def test_a_recurrent_state_is_as_large_as_vllm_makes_it(name: str, gpus: int) -> None:
    config = CONFIGS[name]
    calculator = load("model_executor.layers.mamba.mamba_utils").MambaStateShapeCalculator
    shapes = {
        "nemotron-h-8b": lambda: calculator.mamba2_state_shape(gpus, 8192, 8, 128, 64, 128, 4),
        "granite-4.0-h-small": lambda: calculator.mamba2_state_shape(gpus, 8192, 1, 128, 64, 128, 4),
        "jamba-1.5-mini": lambda: calculator.mamba1_state_shape(gpus, 8192, 16, 4),
        "qwen3-next-80b": lambda: calculator.gated_delta_net_state_shape(gpus, 16, 32, 128, 128, 4),
    }[name]()
    (state,) = (layers.state for layers in shape.read(config).caches if layers.state is not None)
    conv, recurrent = (_product(dimensions) for dimensions in shapes)
    assert state.bytes(gpus, 2, 4) == conv * 2 + recurrent * 4


@pytest.mark.parametrize("gpus", [1, 4])
@pytest.mark.parametrize(
    "name",
    [
        "llama-3.1-8b",
        "mistral-7b-v0.1",
        "gemma-3-4b",
        "gpt-oss-20b",
        "deepseek-v3",
        "nemotron-h-8b",
        "jamba-1.5-mini",
        "qwen3-next-80b",
    ],
)
def test_the_cache_is_divided_as_vllm_divides_it(name: str, gpus: int) -> None:
    caches = shape.read(CONFIGS[name]).caches
    ours = cache_plan.plan(caches, gpus=gpus, element=2, model_element=2, in_flight=IN_FLIGHT)
    utilities = load("v1.core.kv_cache_utils")
    config = _vllm_config()
    groups = utilities.get_kv_cache_groups(config, _specs(caches, gpus, ours.block_tokens))
    assert ours.bytes_per_block == utilities._pool_bytes_per_block(config, groups)
    assert ours.bytes_for(LENGTH) == utilities._max_memory_usage_bytes_from_groups(config, groups)
    assert sum(group.tables for group in ours.groups) == len(groups)


def _specs(caches: tuple[CacheLayers, ...], gpus: int, block: int) -> dict[str, Any]:
    interface, torch = load("v1.kv_cache_interface"), importlib.import_module("torch")
    page = max(layers.bytes_per_token(gpus, 2) for layers in caches if layers.state is None) * block
    specs: dict[str, Any] = {}
    for layers in caches:
        for index in range(layers.count):
            heads = 1 if layers.replicated else max(1, layers.heads // gpus)
            sizes: dict[str, Any] = {"block_size": block, "num_kv_heads": heads, "dtype": torch.bfloat16}
            if layers.state is not None:
                size = layers.state.bytes(gpus, 2, 4 if layers.state.dtype == "float32" else 2)
                spec = interface.MambaSpec(
                    block_size=block,
                    shapes=((size,),),
                    dtypes=(torch.int8,),
                    page_size_padded=page,
                    mamba_cache_mode="align",
                )
            elif layers.replicated:
                spec = interface.MLAAttentionSpec(head_size=layers.width, **sizes)
            elif layers.kind == "window":
                spec = interface.SlidingWindowSpec(
                    head_size=layers.width // 2, sliding_window=layers.window, **sizes
                )
            else:
                spec = interface.FullAttentionSpec(head_size=layers.width // 2, **sizes)
            specs[f"{layers.kind}.{index}"] = spec
    return specs


def _vllm_config() -> Any:
    """As much of a VllmConfig as the cache's division looks at."""
    layout = load("v1.kv_cache_interface").KVCacheLayout
    default = next(value for value in layout if not value.is_block_outermost)
    return SimpleNamespace(
        scheduler_config=SimpleNamespace(disable_hybrid_kv_cache_manager=False),
        cache_config=SimpleNamespace(
            get_resolved_kv_cache_layout=lambda: default,
            mamba_cache_mode="align",
            num_gpu_blocks_override=None,
        ),
        parallel_config=SimpleNamespace(decode_context_parallel_size=1, prefill_context_parallel_size=1),
        model_config=SimpleNamespace(max_model_len=LENGTH),
        attention_config=SimpleNamespace(hisparse_config=None),
        speculative_config=None,
        max_in_flight_tokens=IN_FLIGHT,
    )


def _product(dimensions: tuple[int, ...]) -> int:
    result = 1
    for dimension in dimensions:
        result *= dimension
    return result
