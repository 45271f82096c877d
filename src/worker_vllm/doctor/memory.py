"""How the memory of a GPU is divided: weights, working memory and KV cache, in vLLM's own terms.

vLLM takes a share of the card (gpu_memory_utilization), loads the weights, measures the peak of one full
step, and gives the rest to the KV cache (vllm/v1/worker/gpu_worker.py: determine_available_memory). All of it
is arithmetic here except that peak, which is an estimate; what rests on it is never fatal.
"""

from __future__ import annotations

from dataclasses import dataclass

from worker_vllm.doctor.case import Case
from worker_vllm.doctor.gpus import GIB

_FIXED = int(0.3 * GIB)
"""Libraries' workspaces, with one GPU."""
_COMMUNICATION = int(0.7 * GIB)
"""Buffers of NCCL and of the custom all-reduce, with several."""
_ENCODER = int(1.5 * GIB)
"""An encoder's step on the largest image or sound."""
_BYTES_PER_LOGIT = 20
"""The sampler's copies of the logits: as written, as float32, sorted, and the order."""
_GRAPHS_FIXED = int(0.2 * GIB)
_GRAPHS_PER_LAYER = 0.015 * GIB


@dataclass(frozen=True)
class Budget:
    """Memory of one GPU, in bytes.

    Attributes:
        total: of the card. share: what vLLM may use of it.
        weights: see `weights.WeightSize`. weights_exact, weights_source: likewise.
        activations: estimate of a step's peak. graphs: of CUDA graphs.
        cache: left for the KV cache; may be negative.
        fixed_cache: whether the cache's size was set outright (kv_cache_memory_bytes).
    """

    total: int
    share: int
    weights: int
    weights_exact: bool
    weights_source: str
    activations: int
    graphs: int
    cache: int
    fixed_cache: bool = False


def budget(case: Case) -> Budget | None:
    """The budget of the smallest GPU; None where card or weights are not known."""
    device = case.hardware.smallest
    if device is None or not device.memory or not case.weights.bytes:
        return None
    utilization = case.value("gpu_memory_utilization")
    share = int(device.memory * (utilization if isinstance(utilization, int | float) else 0.92))
    offloaded = case.value("cpu_offload_gb")
    resident = case.weights.bytes - int((offloaded or 0) * GIB)
    size = case.weights
    activations, graphs = activation_bytes(case), graph_bytes(case)
    fixed = case.value("kv_cache_memory_bytes")
    cache = fixed if isinstance(fixed, int) and fixed > 0 else 0
    return Budget(
        total=device.memory,
        share=share,
        weights=max(resident, 0),
        weights_exact=case.weights_are_certain,
        weights_source=size.source,
        activations=activations,
        graphs=graphs,
        cache=cache or share - max(resident, 0) - activations - graphs,
        fixed_cache=bool(cache),
    )


def activation_bytes(case: Case) -> int:
    """Estimate of what one full step needs beside the weights: the widest layer, or the sampler."""
    shape, gpu = case.shape, case.tensor_parallel
    tokens = case.max_num_batched_tokens
    widest = max(
        3 * shape.intermediate // gpu,
        (2 * shape.heads + 2 * shape.kv_heads) * shape.head_dim // gpu,
        *(3 * layers.state.inner // gpu for layers in shape.caches if layers.state is not None),
        0,
    )
    if shape.experts:
        # the fused kernel's two workspaces, for every expert that a token goes to
        routed = shape.experts_per_token
        width = max(2 * shape.expert_width // gpu, shape.hidden) + shape.expert_width // gpu
        widest = max(widest, routed * width)
    step = tokens * case.element * (4 * shape.hidden + widest)
    sampler = case.max_num_seqs * shape.vocabulary * _BYTES_PER_LOGIT
    communication = _COMMUNICATION if case.gpus_per_copy > 1 else 0
    encoder = _ENCODER if shape.multimodal and not case.value("language_model_only") else 0
    return max(step, sampler) + _FIXED + communication + encoder


def graph_bytes(case: Case) -> int:
    """Estimate of what captured CUDA graphs need; nothing where they are off or not counted."""
    if case.value("enforce_eager") or case.environ.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == "0":
        return 0
    scale = (max(case.shape.hidden, 1) / 4096) ** 0.5
    return _GRAPHS_FIXED + int(_GRAPHS_PER_LAYER * case.shape.layers * scale)
