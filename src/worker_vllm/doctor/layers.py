"""Which layers of a model keep something for a request, and how much: keys and values of all tokens, of a
window, or a state of fixed size. The kinds are those of vLLM's KV cache specifications
(vllm/v1/kv_cache_interface.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worker_vllm.doctor.states import StateSize, state_size

Config = Mapping[str, Any]
Kind = Literal["full", "window", "chunk", "state", "cross"]

ENCODERS = frozenset(
    {"bert", "roberta", "xlm-roberta", "modernbert", "nomic_bert", "distilbert", "camembert", "new", "mpnet"}
)
"""Families without a KV cache: they read a text once."""

_MOST_LAYERS = 10_000
WHISPER_FRAMES = 1500
"""Positions that Whisper's encoder makes of half a minute of sound, whatever the model's size."""

# families whose cache this module cannot tell from the configuration
_UNTOLD = {
    "deepseek_v4": "its layers compress their caches by different ratios",
    "gemma4_text": "its layers have heads of different sizes",
    "zamba2": "its layers share one attention block",
}
_ORDER: tuple[Kind, ...] = ("full", "window", "chunk", "state")
_WORDS: dict[str, Kind | None] = {
    "full_attention": "full",
    "attention": "full",
    "sliding_attention": "window",
    "chunked_attention": "chunk",
    "linear_attention": "state",
    "mamba": "state",
    "conv": "state",
    "moe": None,
    "mlp": None,
}


@dataclass(frozen=True)
class CacheLayers:
    """Layers of one kind.

    Attributes:
        kind: full keeps every token, window the last ones, chunk those of a local chunk, cross an encoder's
            output, state a fixed amount.
        count: how many layers.
        heads: KV heads of the whole model; 1, and on every GPU, for a latent.
        width: elements per token and head: key and value, or the latent.
        window: tokens of the window, the chunk or the encoder.
        replicated: whether every GPU keeps all of it, as a latent is kept.
        element: bytes of an element, where the layer has a type of its own; 0 for the cache's.
        state: of a recurrent layer.
    """

    kind: Kind
    count: int
    heads: int = 0
    width: int = 0
    window: int = 0
    replicated: bool = False
    element: int = 0
    state: StateSize | None = None

    def bytes_per_token(self, gpus: int, element: int) -> int:
        """Bytes per token, layer and GPU, for an element of the cache of `element` bytes."""
        heads = self.heads if self.replicated else max(1, self.heads // gpus)
        return heads * self.width * (self.element or element)


def caches(
    text: Config, family: str, count: int, kv_heads: int, head_dim: int, *, mla: bool
) -> tuple[tuple[CacheLayers, ...], str]:
    """The layers of a model by kind, and why that is not certain ("" where it is)."""
    try:
        if count > _MOST_LAYERS:
            raise ValueError
        return _caches(text, family, count, kv_heads, head_dim, mla=mla)
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError):
        return (), "its configuration has values that cannot be read"


def _caches(
    text: Config, family: str, count: int, kv_heads: int, head_dim: int, *, mla: bool
) -> tuple[tuple[CacheLayers, ...], str]:
    if family in ENCODERS:
        return (), ""
    if family == "whisper":
        decoder = CacheLayers("full", count, kv_heads, 2 * head_dim)
        return (decoder, CacheLayers("cross", count, kv_heads, 2 * head_dim, WHISPER_FRAMES)), ""
    uncertain = _UNTOLD.get(family, "")
    pattern = kinds(text, family, count)
    if not pattern:
        return (), "its layers are of kinds that are not known here"
    full = _latent(text) if mla else CacheLayers("full", 0, kv_heads, 2 * head_dim)
    if not full.heads * full.width and any(kind != "state" for kind in pattern):
        return (), "the size of its heads is not stated"
    found: list[CacheLayers] = []
    for kind in _ORDER:
        number = pattern.count(kind)
        if not number:
            continue
        if kind == "state":
            state = state_size(text, family)
            if state is None:
                return (), "the size of its recurrent state is not known here"
            found.append(CacheLayers("state", number, state=state))
        else:
            window = _window(text, kind)
            found.append(
                CacheLayers(
                    kind,
                    number,
                    full.heads,
                    full.width,
                    window,
                    full.replicated,
                )
            )
    if mla and text.get("index_topk") and isinstance(text.get("index_head_dim"), int):
        # DeepSeek V3.2's indexer: eight bits an element, and a scale of four bytes for 128 of them
        width = text["index_head_dim"] + text["index_head_dim"] // 128 * 4
        found.append(CacheLayers("full", count, 1, width, replicated=True, element=1))
    return tuple(found), uncertain


def _latent(text: Config) -> CacheLayers:
    return CacheLayers("full", 0, 1, text["kv_lora_rank"] + text["qk_rope_head_dim"], replicated=True)


def _window(text: Config, kind: str) -> int:
    found = {"window": text.get("sliding_window"), "chunk": text.get("attention_chunk_size")}.get(kind)
    return found if isinstance(found, int) else 0


def kinds(text: Config, family: str, count: int) -> list[Kind]:
    """What each layer that keeps something is; a layer of Falcon H1 is two. Empty where it cannot be told."""
    special = _SPECIAL.get(family)
    if special and (found := special(text, count)):
        return found
    for key in ("layer_types", "layers_block_type"):
        words = text.get(key)
        if isinstance(words, list) and words:
            words = words[: len(words) - _shared(text)]
            if not all(word in _WORDS for word in words):
                return []
            return [kind for word in words if (kind := _WORDS[word])]
    window = text.get("sliding_window")
    if isinstance(window, int) and window > 0 and text.get("use_sliding_window") is not False:
        period = _period(text, family)
        # without a pattern every layer has the window, as vLLM sees it
        return ["window" if not period or (i + 1) % period else "full" for i in range(count)]
    return ["full"] * count


def _shared(text: Config) -> int:
    """The last layers, where they use the cache of earlier ones (Gemma 3n)."""
    shared = text.get("num_kv_shared_layers")
    return shared if isinstance(shared, int) else 0


_PERIODS = {
    "gemma2": 2,
    "gemma3_text": 6,
    "gemma3n_text": 5,
    "gpt_oss": 2,
    "cohere2": 4,
    "exaone4": 4,
    "olmo3": 4,
}


def _period(text: Config, family: str) -> int:
    for key in ("sliding_window_pattern", "_sliding_window_pattern"):
        if isinstance(text.get(key), int):
            return int(text[key])
    return _PERIODS.get(family, 0)


def _nemotron(text: Config, count: int) -> list[Kind]:
    letters: dict[str, Kind] = {"M": "state", "*": "full"}
    pattern = text.get("hybrid_override_pattern")
    return [letters[letter] for letter in pattern if letter in letters] if isinstance(pattern, str) else []


def _jamba(text: Config, count: int) -> list[Kind]:
    period, offset = text.get("attn_layer_period", 8), text.get("attn_layer_offset", 4)
    return ["full" if i % period == offset else "state" for i in range(count)]


def _bamba(text: Config, count: int) -> list[Kind]:
    indices = text.get("attn_layer_indices") or []
    return ["full" if i in indices else "state" for i in range(count)]


def _linear(text: Config, count: int) -> list[Kind]:
    if text.get("layer_types"):
        return []
    period = text.get("full_attention_interval", 4)
    return ["state" if (i + 1) % period else "full" for i in range(count)]


def _kimi(text: Config, count: int) -> list[Kind]:
    linear = text.get("linear_attn_config") or {}
    attention = len(linear.get("full_attn_layers") or ())
    found: list[Kind] = ["full"] * attention
    return [*found, *_all_state(text, count - attention)]


def _all_state(text: Config, count: int) -> list[Kind]:
    return ["state"] * count


def _lfm2(text: Config, count: int) -> list[Kind]:
    indices = text.get("full_attn_idxs")
    if text.get("layer_types") or not isinstance(indices, list):
        return []
    return ["full" if i in indices else "state" for i in range(count)]


def _llama4(text: Config, count: int) -> list[Kind]:
    if text.get("layer_types") or not text.get("attention_chunk_size"):
        return []
    period = text.get("no_rope_layer_interval", 4)
    return ["chunk" if (i + 1) % period else "full" for i in range(count)]


_SPECIAL: dict[str, Callable[[Config, int], list[Kind]]] = {
    "nemotron_h": _nemotron,
    "jamba": _jamba,
    "bamba": _bamba,
    "qwen3_next": _linear,
    "qwen3_5_text": _linear,
    "qwen3_5_moe_text": _linear,
    "kimi_linear": _kimi,
    "lfm2": _lfm2,
    "lfm2_moe": _lfm2,
    "llama4_text": _llama4,
    "mamba": _all_state,
    "mamba2": _all_state,
    "falcon_mamba": _all_state,
    "falcon_h1": lambda text, count: ["full", "state"] * count,
}
