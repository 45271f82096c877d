"""What the doctor reads off config.json, against figures that are known from elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases import case, facts
from tests.model_shapes import CONFIGS, WEIGHTS
from worker_vllm import doctor
from worker_vllm.doctor import cache_plan, shape, weights
from worker_vllm.doctor.cache_plan import CachePlan

KIB = 1024


def plan(name: str, gpus: int = 1, element: int = 2, **options: Any) -> CachePlan:
    caches = shape.read(CONFIGS[name]).caches
    return cache_plan.plan(caches, gpus=gpus, element=element, model_element=2, **options)


def per_token(name: str, **options: Any) -> float:
    found = plan(name, **options)
    return found.bytes_for(2**20) / 2**20


@pytest.mark.parametrize("name", sorted(set(CONFIGS) - {"whisper-large-v3", "gpt-oss-20b", "bge-large"}))
def test_weights_counted_from_the_configuration_are_near_the_files(name: str) -> None:
    """The three left out are stored in other types than their configuration says, or mostly encoder."""
    without_files = facts(name, CONFIGS[name])
    counted = weights.on_each_gpu(
        without_files, shape.read(CONFIGS[name]), gpus=1, quantization=None, dtype="bfloat16"
    )
    assert counted.bytes == pytest.approx(WEIGHTS[name], rel=0.1)
    assert not counted.exact


@pytest.mark.parametrize(
    ("name", "parameters"), [("llama-3.1-8b", 8.03e9), ("qwen3-8b", 8.19e9), ("mixtral-8x7b", 46.7e9)]
)
def test_parameters_are_those_of_the_model_cards(name: str, parameters: float) -> None:
    assert weights.count_parameters(shape.read(CONFIGS[name])) == pytest.approx(parameters, rel=0.002)


@pytest.mark.parametrize(
    ("name", "length"),
    [
        ("llama-3.1-8b", 131072),  # llama3 scaling is counted in
        ("deepseek-v3", 163840),  # so is yarn
        ("gemma-3-4b", 131072),  # and Gemma's linear one, which the configuration leaves out
        ("whisper-large-v3", 448),
        ("qwen2.5-vl-7b", 128000),
    ],
)
def test_the_model_states_its_longest_context(name: str, length: int) -> None:
    assert shape.read(CONFIGS[name]).max_length == length


def test_linear_scaling_stretches_the_context() -> None:
    config = {"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 4.0}}
    assert shape.read(config).max_length == 16384


@pytest.mark.parametrize(
    ("name", "gpus", "element", "kib"),
    [
        ("llama-3.1-8b", 1, 2, 128),
        ("llama-3.1-8b", 2, 2, 64),
        ("llama-3.1-8b", 16, 2, 16),  # eight KV heads, each on two GPUs
        ("llama-3.1-8b", 1, 1, 64),  # an fp8 cache
        ("qwen2.5-7b", 1, 2, 56),
        ("deepseek-v3", 1, 2, 61 * 576 * 2 / KIB),  # one latent
        ("deepseek-v3", 8, 2, 61 * 576 * 2 / KIB),  # which every GPU keeps
    ],
)
def test_a_token_takes_what_its_kv_heads_take(name: str, gpus: int, element: int, kib: float) -> None:
    assert per_token(name, gpus=gpus, element=element) == pytest.approx(kib * KIB)


def test_layers_with_a_window_keep_the_window_alone() -> None:
    """gpt-oss: of 24 layers 12 see 128 tokens."""
    every_token = 24 * 8 * 64 * 2 * 2
    assert per_token("gpt-oss-20b") == pytest.approx(every_token / 2, rel=0.01)
    assert per_token("gpt-oss-20b", hybrid=False) == pytest.approx(every_token)
    # all 32 layers of the first Mistral see 4096
    assert plan("mistral-7b-v0.1").bytes_for(32768) == plan("mistral-7b-v0.1").bytes_for(20000)


def test_windowed_layers_are_cut_into_groups_as_large_as_the_full_ones() -> None:
    """Gemma 3 4B: 5 layers of 34 see everything, the 29 others are cut into six groups of five."""
    found = plan("gemma-3-4b")
    assert [(group.kind, group.tables) for group in found.groups] == [("full", 1), ("window", 6)]
    assert found.bytes_per_block == 5 * 16 * 4 * 256 * 2 * 2


@pytest.mark.parametrize(
    ("name", "block"),
    # as vLLM's log says: "Setting attention block size to 544 tokens"
    [("qwen3-next-80b", 544), ("nemotron-h-8b", 1040), ("jamba-1.5-mini", 80), ("granite-4.0-h-small", 528)],
)
def test_a_hybrid_models_blocks_are_as_large_as_its_states(name: str, block: int) -> None:
    assert plan(name).block_tokens == block


def test_a_recurrent_state_does_not_grow_with_the_text() -> None:
    found = plan("nemotron-h-8b")
    longer = found.blocks_for(8320) - found.blocks_for(1040)
    assert longer == 7  # blocks of the attention layers alone
    assert found.blocks_for(1) == 1 + 6 * 2  # with prefix caching a state is kept twice
    assert plan("nemotron-h-8b", prefix_caching=False).blocks_for(1) == 1 + 6


def test_an_encoder_has_no_cache() -> None:
    assert plan("bge-large").bytes_per_block == 0


def test_whisper_keeps_its_encoders_output_too() -> None:
    assert plan("whisper-large-v3").blocks_for(448) == 448 // 16 + -(-1500 // 16)


def test_the_longest_context_is_the_last_that_fits() -> None:
    found = plan("llama-3.1-8b")
    assert found.longest(found.bytes_for(8192), 131072) == 8192
    assert found.longest(found.bytes_for(8192) - 1, 131072) == 8192 - 16
    assert found.longest(0, 131072) == 0
    assert found.longest(10**15, 131072) == 131072


def test_overrides_are_laid_over_the_configuration() -> None:
    config = CONFIGS["gemma-3-4b"]
    changed = shape.read(config, {"text_config": {"num_hidden_layers": 2}})
    assert changed.layers == 2
    assert changed.hidden == 2560


def test_a_family_that_is_not_known_is_uncertain() -> None:
    config = {**CONFIGS["llama-3.1-8b"], "layer_types": ["something_new"] * 32}
    assert shape.read(config).uncertain


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**6) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
KEYS = sorted({key for config in CONFIGS.values() for key in (*config, *config.get("text_config", {}))})


def test_the_tokenizers_length_counts_for_embedding_models_alone() -> None:
    """As in vLLM: a Gemma whose tokenizer says 8192 is served with its own 131072 (seen on an H200)."""
    known = case("llama-3.1-8b", "1xH200")
    short = replace(known.facts, tokenizer_config={"model_max_length": 512})
    generating = doctor.Case(short, known.arguments, known.hardware, known.environ)
    assert generating.max_model_len == 131072
    embedding = replace(short, config={**short.config, "position_embedding_type": "absolute"})
    assert doctor.Case(embedding, known.arguments, known.hardware, known.environ).max_model_len == 512


@settings(max_examples=30)
@given(
    st.sampled_from(sorted(CONFIGS)),
    st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4),
    st.sampled_from(["1xV100", "2xH200", "8xL4"]),
)
def test_no_configuration_breaks_the_doctor(name: str, changes: dict[str, Any], gpus: str) -> None:
    """It runs at every start: what vLLM would refuse must come to vLLM."""
    known = case("llama-3.1-8b", gpus)
    strange = doctor.Case(
        facts(name, {**CONFIGS[name], **changes}), known.arguments, known.hardware, known.environ
    )
    doctor.examine(strange).as_text()
