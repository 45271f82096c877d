"""A model's shape, read from config.json alone: what memory and parallelism depend on.

The names are those of transformers' configurations; where a repository leaves one out, its class's default
stands in (`CLASS_DEFAULTS`), as vLLM sees it too. A figure that cannot be told makes the shape `uncertain`,
and nothing fatal is said then.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker_vllm.configuration.model_config import CLASS_DEFAULTS
from worker_vllm.doctor import layers as kinds

Config = Mapping[str, Any]

_NESTED = ("text_config", "thinker_config", "llm_config", "language_config")
# dim, n_kv_heads and hidden_dim stand in params.json, Mistral's own form
_KV_HEADS = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "n_kv_heads")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads", "decoder_attention_heads")
_LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "decoder_layers")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")
_INNER = ("intermediate_size", "decoder_ffn_dim", "n_inner", "hidden_dim")
_LENGTHS = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "max_target_positions",
    "max_sequence_length",
)
_EXPERTS = ("num_experts", "moe_num_experts", "n_routed_experts", "num_local_experts")
_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k")
_TOWERS = ("vision_config", "audio_config", "vision_tower", "audio_encoder", "visual")
# lengths that these kinds of rotary scaling have counted in already (vLLM config/model.py)
_COUNTED_IN = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")


@dataclass(frozen=True)
class ModelShape:
    """What of a model's configuration decides memory and parallelism; sizes are of the whole model.

    Attributes:
        family: the text model's model_type. whole: the model_type of all of it.
        layers, hidden, heads, kv_heads, head_dim, vocabulary, intermediate: 0 where unknown.
        max_length: the longest context that the model states; None where it states none.
        original_length: of a longrope model, the length that vLLM serves it at unless told otherwise.
        dtype: what its weights are written in, where it says; quantized weights aside.
        experts, experts_per_token, expert_width: of a mixture of experts; 0 otherwise.
        mla: whether it has multi-head latent attention.
        caches: the layers that keep something per request. Empty for a model without a cache (an encoder).
        tied: whether embedding and head share their weights.
        multimodal: whether it has an encoder for images or sound.
        uncertain: why the figures of its cache are not certain; "" where they are.
        text: the configuration all this was read from.
    """

    family: str
    whole: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    intermediate: int
    max_length: int | None
    original_length: int | None
    dtype: str | None
    experts: int
    experts_per_token: int
    expert_width: int
    mla: bool
    caches: tuple[kinds.CacheLayers, ...]
    tied: bool
    multimodal: bool
    uncertain: str
    text: Config

    @property
    def known(self) -> bool:
        """Whether enough is known for figures of any kind."""
        return bool(self.layers and self.hidden)

    @property
    def encoder_only(self) -> bool:
        """Whether it is a plain encoder (embeddings, classification), which has no cache."""
        return self.family in kinds.ENCODERS


def read(config: Config, overrides: object = None) -> ModelShape:
    """The shape that `config` describes.

    Args:
        overrides: vLLM's hf_overrides; an object is merged in, anything else makes the shape uncertain.
    """
    if isinstance(overrides, Mapping):
        config = merged(config, overrides)
    text = text_config(config)
    family = str(text.get("model_type") or config.get("model_type") or "")
    text = {**CLASS_DEFAULTS.get(family, {}), **{key: _sane(key, value) for key, value in text.items()}}
    text = {key: value for key, value in text.items() if value is not None or key in _NULLS}
    heads = _first(text, _HEADS)
    hidden = _first(text, _HIDDEN)
    mla = is_mla(text)
    kv_heads = _kv_heads(text, heads)
    head_dim = _whole(text.get("head_dim")) or (hidden // heads if heads else 0)
    count = _first(text, _LAYERS)
    caches, uncertain = kinds.caches(text, family, count, kv_heads, head_dim, mla=mla)
    if overrides and not isinstance(overrides, Mapping):
        uncertain = "HF_OVERRIDES changes the configuration"
    return ModelShape(
        family=family,
        whole=str(config.get("model_type") or family),
        layers=count,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        vocabulary=_whole(text.get("vocab_size") or config.get("vocab_size")),
        intermediate=_intermediate(text, hidden),
        max_length=_max_length(text, family),
        original_length=_original_length(text),
        dtype=_dtype(config, text),
        experts=_first(text, _EXPERTS),
        experts_per_token=_first(text, _PER_TOKEN),
        expert_width=_whole(text.get("moe_intermediate_size")) or _whole(text.get("intermediate_size")),
        mla=mla,
        caches=caches,
        tied=bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False))),
        multimodal=any(isinstance(config.get(key), Mapping) for key in _TOWERS),
        uncertain=uncertain,
        text=text,
    )


# "sliding_window": null says that there is none, and must win over the class's default
_NULLS = ("sliding_window",)
_ZERO_COUNTS = ("attn_layer_offset",)
_MOST = 2**27


def _sane(key: str, value: Any) -> Any:
    """`value`, or None for a number that cannot be one of a model: each start reads whatever somebody
    has put into a file, and what is wrong with it is vLLM's to say."""
    if isinstance(value, list) and value and isinstance(value[0], int):
        return [number for number in value if isinstance(number, int) and 0 <= number <= _MOST]
    if isinstance(value, int) and not isinstance(value, bool):
        return value if 0 < value <= _MOST or (value == 0 and key in _ZERO_COUNTS) else None
    return value


def text_config(config: Config) -> Config:
    """The part of `config` that describes the language model."""
    for key in _NESTED:
        inner = config.get(key)
        if isinstance(inner, Mapping) and inner:
            return text_config(inner)
    return config


def merged(config: Config, overrides: Config) -> dict[str, Any]:
    """`config` with `overrides` laid over it, object by object."""
    result = dict(config)
    for key, value in overrides.items():
        before = result.get(key)
        both = isinstance(before, Mapping) and isinstance(value, Mapping)
        result[key] = merged(before, value) if both else value  # type: ignore[arg-type]
    return result


def is_mla(text: Config) -> bool:
    """Whether the model has multi-head latent attention (DeepSeek's), by the width of its latent."""
    return _whole(text.get("kv_lora_rank")) > 0 and _whole(text.get("qk_rope_head_dim")) > 0


def rope_parameters(text: Config) -> list[Config]:
    """The parameters of its rotary embeddings: one, or one per kind of layer."""
    for key in ("rope_parameters", "rope_scaling"):
        found = text.get(key)
        if isinstance(found, Mapping) and found:
            inner = [value for value in found.values() if isinstance(value, Mapping)]
            return inner or [found]
    return []


def _max_length(text: Config, family: str) -> int | None:
    stated = [_whole(text[key]) for key in _LENGTHS if _whole(text.get(key))]
    # a repository that states model_max_length (Command R) means that
    length = _whole(text.get("model_max_length")) or (min(stated) if stated else 0)
    if not length:
        return None
    scale = 1.0
    for parameters in rope_parameters(text) if "gemma3" not in family else ():
        kind = parameters.get("rope_type") or parameters.get("type")
        factor = parameters.get("factor")
        if kind not in _COUNTED_IN and isinstance(factor, int | float) and math.isfinite(factor):
            scale = float(factor)
    return int(length * scale)


def _original_length(text: Config) -> int | None:
    for parameters in rope_parameters(text):
        if (parameters.get("rope_type") or parameters.get("type")) == "longrope":
            name = "original_max_position_embeddings"
            return _whole(text.get(name)) or _whole(parameters.get(name)) or None
    return None


def _kv_heads(text: Config, heads: int) -> int:
    if text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    return _first(text, _KV_HEADS) or heads


def _intermediate(text: Config, hidden: int) -> int:
    return _first(text, _INNER) or 4 * hidden


def _dtype(config: Config, text: Config) -> str | None:
    for source in (config, text):
        for key in ("dtype", "torch_dtype"):
            if isinstance(source.get(key), str):
                return str(source[key]).removeprefix("torch.")
    return None


def _first(text: Config, names: tuple[str, ...]) -> int:
    return next((_whole(text[name]) for name in names if _whole(text.get(name))), 0)


def _whole(value: object) -> int:
    if isinstance(value, list) and value:
        value = value[0]
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
