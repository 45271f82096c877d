"""A model's config.json: where it comes from, and what the configuration needs of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

NAME = "config.json"

Reader = Callable[[str, str | None], Mapping[str, Any] | None]
"""Reads a model's config.json, given its name or path and its revision; None if it cannot be had."""

_HEAD_KEYS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
_KV_HEAD_KEYS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "n_kv_heads")
_LATENT_KEY = "kv_lora_rank"
_VOCABULARY_PADDING = 64
_NESTED_KEYS = ("text_config", "llm_config", "language_config", "thinker_config", "decoder")
_ROPE_KEYS = ("rope_theta", "partial_rotary_factor")

# transformers 5.19, read from AutoConfig.for_model; only what published config.json files leave out
CLASS_DEFAULTS: Mapping[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "num_key_value_heads": 4, "num_attention_heads": 8, "sliding_window": 4096},
    "gemma3_text": {
        "head_dim": 256,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "vocab_size": 262208,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "gemma3n_text": {"head_dim": 256, "num_attention_heads": 8, "num_key_value_heads": 2},
    "gpt_oss": {"head_dim": 64, "sliding_window": 128},
    "mistral": {"num_key_value_heads": 8},
    "mixtral": {"num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2},
    "nemotron_h": {"mamba_ssm_cache_dtype": "float32"},
    "cohere2": {"sliding_window": 4096},
    "llama4_text": {"head_dim": 128, "num_key_value_heads": 8, "attention_chunk_size": 8192},
}


def read(model: str, revision: str | None) -> Mapping[str, Any] | None:
    """The config.json of a folder on this machine; None of anything else. `models.config_reader` knows caches
    and the hub."""
    try:
        content = json.loads((Path(model) / NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def attention_heads(config: Mapping[str, Any]) -> int | None:
    """The number of attention heads that a config.json states, of the text model in a larger one."""
    return _stated(config, _HEAD_KEYS)


def can_be_shared(config: Mapping[str, Any], gpus: int) -> bool:
    """Whether tensor parallel over so many GPUs divides the model as vLLM wants it: attention heads evenly,
    KV heads evenly or each repeated, and the vocabulary, which vLLM pads. True of what is not stated."""
    heads, kv_heads = attention_heads(config), _stated(config, _KV_HEAD_KEYS)
    if heads and heads % gpus:
        return False
    if kv_heads and not _stated(config, (_LATENT_KEY,)) and kv_heads % gpus and gpus % kv_heads:
        return False
    vocabulary = _stated(config, ("vocab_size",)) or 0
    return -(-vocabulary // _VOCABULARY_PADDING) * _VOCABULARY_PADDING % gpus == 0


def _stated(config: Mapping[str, Any], keys: Sequence[str]) -> int | None:
    """The first of `keys` that is a positive number, in the text model of a larger one if it is there; what a
    file leaves out is its class's default."""
    for nested in _NESTED_KEYS:
        inner = config.get(nested)
        if isinstance(inner, Mapping) and (found := _stated(inner, keys)):
            return found
    config = {**CLASS_DEFAULTS.get(str(config.get("model_type")), {}), **config}
    number = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
    return number if number and number > 0 else None


def rope_parameters(config: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a model's rotary embedding, in the form that transformers 5 has for all of them."""
    text = next((config[key] for key in _NESTED_KEYS if isinstance(config.get(key), Mapping)), config)
    found: dict[str, Any] = {key: text[key] for key in _ROPE_KEYS if text.get(key) is not None}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(text.get(key), Mapping):
            found |= text[key]
    return renamed(found)


def renamed(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """`parameters` with the old name of the kind of scaling, type, replaced by today's, rope_type."""
    found = dict(parameters)
    if "type" in found:
        found.setdefault("rope_type", found.pop("type"))
    return found
