"""How many bytes of weights come to lie on each GPU: from the files' sizes where they are known, else from
the configuration's arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

from worker_vllm.doctor.shape import ModelShape
from worker_vllm.models.facts import ModelFacts

# Bytes per weight of a quantized layer, scales counted in.
_METHOD_BYTES = {
    "awq": 0.53,
    "gptq": 0.53,
    "awq_marlin": 0.53,
    "gptq_marlin": 0.53,
    "mxfp4": 0.53,
    "modelopt_fp4": 0.57,
    "nvfp4": 0.57,
    "fp8": 1.0,
    "modelopt": 1.0,
    "fbgemm_fp8": 1.0,
    "experts_int8": 1.0,
}
_QUANTIZES_WHILE_LOADING = frozenset({"fp8", "fp8_per_tensor", "fp8_per_block", "experts_int8", "mxfp8"})
_UNGATED = frozenset(
    {
        "gpt2",
        "opt",
        "whisper",
        "falcon",
        "nemotron_h",
        "nemotron",
        "starcoder2",
        "phi",
        "gpt_neox",
        "mpt",
        "bert",
        "roberta",
    }
)


@dataclass(frozen=True)
class WeightSize:
    """Weights on one GPU.

    Attributes:
        bytes: 0 where nothing is known.
        exact: whether it comes from the sizes of files, as stored, without a conversion on the way.
        source: where it comes from, in words.
    """

    bytes: int
    exact: bool
    source: str


def on_each_gpu(
    facts: ModelFacts, shape: ModelShape, *, gpus: int, quantization: str | None, dtype: str
) -> WeightSize:
    """Weights per GPU where `gpus` (tensor times pipeline parallel) share them.

    Args:
        quantization: vLLM's argument. dtype: what the model will run in.
    """
    stored = facts.weight_bytes if facts.weights.complete else 0
    total, exact, source = stored, bool(stored), "the files' sizes"
    if not stored:
        total = counted_bytes(shape, facts.quantization or quantization, dtype)
        source = "the configuration, as the files' sizes are not known"
    elif quantization in _QUANTIZES_WHILE_LOADING and not facts.quantization:
        plain = min(2 * _embedding(shape), total)
        total, exact = plain + (total - plain) // 2, False
        source = f"the files' sizes, halved by {quantization} while loading"
    elif shape.dtype == "float32" and not facts.quantization and _element(dtype) == 2:
        total, exact = total // 2, False
        source = "the files' sizes, halved because float32 weights are loaded as 16 bits"
    elif dtype == "float32" and shape.dtype in ("bfloat16", "float16") and not facts.quantization:
        total, exact = total * 2, False
        source = "the files' sizes, doubled because they are loaded as float32"
    return WeightSize(total // gpus, exact and total > 0, source if total else "")


def counted_bytes(shape: ModelShape, quantization: str | None, dtype: str) -> int:
    """Bytes of the language model's weights by its configuration; 0 where the shape is unknown."""
    parameters, plain = count_parameters(shape), _embedding(shape)
    each = _METHOD_BYTES.get(quantization or "", _element(dtype))
    return int(plain * 2 + max(parameters - plain, 0) * each) if parameters else 0


def count_parameters(shape: ModelShape) -> int:
    """Weights of the language model by its configuration; 0 where the shape is unknown. Good to a few
    percent for transformers; encoders for images and sound are not counted."""
    if not shape.known:
        return 0
    total = _embedding(shape) * (1 if shape.tied else 2)
    attention = _attention(shape)
    states = sum(layers.count for layers in shape.caches if layers.state is not None)
    keepers = sum(layers.count for layers in shape.caches if layers.kind in ("full", "window", "chunk"))
    if shape.mla and keepers > shape.layers:
        keepers = shape.layers  # the indexer's layers are the same ones
    total += attention * (keepers or shape.layers) + _recurrent(shape) * states
    total += attention * sum(layers.count for layers in shape.caches if layers.kind == "cross")
    return total + _feed_forward(shape)


def _embedding(shape: ModelShape) -> int:
    return shape.vocabulary * shape.hidden


def _attention(shape: ModelShape) -> int:
    text, hidden, heads = shape.text, shape.hidden, shape.heads
    if shape.mla:
        rope, plain = _number(text["qk_rope_head_dim"]), _number(text.get("qk_nope_head_dim")) or 128
        value, latent = _number(text.get("v_head_dim")) or plain, _number(text["kv_lora_rank"])
        query_rank = _number(text.get("q_lora_rank"))
        query = (
            query_rank * (hidden + heads * (plain + rope)) if query_rank else hidden * heads * (plain + rope)
        )
        return query + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden
    return hidden * shape.head_dim * (2 * heads + 2 * shape.kv_heads)


def _recurrent(shape: ModelShape) -> int:
    for layers in shape.caches:
        if layers.state is not None:
            channels = layers.state.inner + 2 * layers.state.groups * layers.state.group_width
            return shape.hidden * (channels + 2 * layers.state.inner)
    return 0


def _feed_forward(shape: ModelShape) -> int:
    matrices = 2 if shape.family in _UNGATED else 3
    dense = matrices * shape.hidden * shape.intermediate
    layers = _feed_forward_layers(shape)
    if not shape.experts:
        return dense * layers
    expert = matrices * shape.hidden * shape.expert_width
    shared = _number(shape.text.get("n_shared_experts")) * expert
    shared += matrices * shape.hidden * _number(shape.text.get("shared_expert_intermediate_size"))
    first_dense = min(_number(shape.text.get("first_k_dense_replace")), layers)
    period = _number(shape.text.get("expert_layer_period")) or 1
    sparse = (layers - first_dense) // period
    return sparse * (shape.experts * expert + shared) + (layers - sparse) * dense


def _feed_forward_layers(shape: ModelShape) -> int:
    pattern = shape.text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return sum(letter in "-E" for letter in pattern)
    return shape.layers


def _number(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _element(dtype: str) -> int:
    return 4 if dtype in ("float32", "float") else 2
