"""Findings about what a GPU's compute capability allows: data types, quantization, attention."""

from __future__ import annotations

from collections.abc import Iterator

from worker_vllm.doctor.case import NO_FLOAT16, Case
from worker_vllm.doctor.finding import Finding

Capability = tuple[int, int]

# Below these vLLM raises (each config class's get_min_capability in model_executor/layers/quantization); the
# lowest of the supported versions.
_MINIMUM: dict[str, Capability] = {
    "awq": (7, 5),
    "awq_marlin": (7, 5),
    "fp8": (7, 5),
    "fbgemm_fp8": (8, 0),
    "mxfp4": (8, 0),
    "modelopt": (7, 5),
    "modelopt_fp4": (7, 5),
    "experts_int8": (8, 0),
    "torchao": (7, 5),
    "gptq": (6, 0),
    "gptq_marlin": (6, 0),
    "compressed-tensors": (7, 0),
}
_EIGHT_BIT_FLOATS = frozenset({"fp8", "fbgemm_fp8", "modelopt"})
_FOUR_BIT_FLOATS = frozenset({"mxfp4", "modelopt_fp4", "nvfp4", "gpt_oss_mxfp4"})
_FP8_CAPABILITY = (8, 9)
_FP4_CAPABILITY = (10, 0)
_FLASH_CAPABILITY = (8, 0)

# Attention backends and the capabilities that they run on (supports_compute_capability in
# vllm/v1/attention/backends).
_BACKENDS: dict[str, tuple[Capability, Capability]] = {
    "FLASH_ATTN": ((8, 0), (99, 0)),
    "FLASHMLA": ((9, 0), (10, 9)),
    "FLASH_ATTN_MLA": ((9, 0), (9, 9)),
    "CUTLASS_MLA": ((10, 0), (10, 9)),
    "FLASHINFER_MLA": ((10, 0), (10, 9)),
}
_CUDA_13_MINIMUM = (7, 5)
_BLACKWELL = (10, 0)
_BLACKWELL_CUDA = (12, 8)


def findings(case: Case) -> Iterator[Finding]:
    """What the GPUs' capability says against the case."""
    capability = case.hardware.capability
    if case.hardware.platform != "gpu" or capability is None:
        return
    card = min(case.hardware.devices, key=lambda device: device.capability).name
    named = f"{card} (capability {capability[0]}.{capability[1]})"
    yield from _cuda(case, capability, named)
    yield from _dtype(case, named)
    yield from _quantization(case, capability, named)
    yield from _cache_dtype(case, capability, named)
    yield from _attention(case, capability, named)


def _cuda(case: Case, capability: Capability, named: str) -> Iterator[Finding]:
    built = case.hardware.torch_cuda
    if capability < _CUDA_13_MINIMUM and (built is None or built >= (13, 0)):
        certain = built is not None and not case.hardware.asked
        yield Finding(
            "fatal" if certain else "warning",
            "cuda-without-capability",
            f"a build for CUDA 13 has no code for {named}, and nothing runs on it",
            "CUDA 13 begins at capability 7.5, and today's vLLM images are built with it",
            "choose a GPU of capability 8.0 or later, or an image built for CUDA 12",
        )
    if capability >= _BLACKWELL and built is not None and built < _BLACKWELL_CUDA:
        yield Finding(
            "warning",
            "cuda-without-capability",
            f"torch is built for CUDA {built[0]}.{built[1]}, which has no code for {named}",
            "Blackwell needs CUDA 12.8 or later",
            "choose an image built for CUDA 13",
        )


def _dtype(case: Case, named: str) -> Iterator[Finding]:
    explicit = str(case.value("dtype") or "auto").lower()
    family = next((name for name in (case.shape.family, case.shape.whole) if name in NO_FLOAT16), None)
    if not case.lacks_bfloat16:
        if family and explicit in ("float16", "half"):
            yield Finding(
                "fatal",
                "float16-unstable",
                f"{case.variable('dtype')}={explicit}, and {family} overflows in float16: vLLM refuses it",
                "vLLM bars this family from float16",
                "leave DTYPE out: the card has bfloat16",
            )
        return
    if family and explicit in ("auto", "float16", "half", "bfloat16"):
        refused = explicit != "auto"
        yield Finding(
            "fatal" if refused else "warning",
            "float16-unstable",
            f"{named} has no bfloat16, and {family} overflows in float16: "
            + (
                "vLLM refuses to start"
                if refused
                else "vLLM runs it in float32, twice as large and far slower"
            ),
            "vLLM bars this family from float16",
            "choose a GPU of capability 8.0 or later (RTX 30 series, A-series or newer)",
        )
    elif explicit == "bfloat16":
        yield Finding(
            "fatal",
            "bfloat16",
            f"{case.variable('dtype')}=bfloat16, and {named} has no bfloat16: vLLM refuses to start",
            "bfloat16 arithmetic begins at capability 8.0",
            "set DTYPE=float16, or leave DTYPE out",
        )
    elif explicit == "auto" and case.shape.dtype == "bfloat16":
        yield Finding(
            "warning",
            "bfloat16",
            f"the model is written in bfloat16, and {named} has none: vLLM runs it in float16 instead",
            "float16 has the same size and a smaller range; most models take it well, and one that does not "
            "answers with !!!! or nothing",
            "compare some answers before you rely on it, or choose a GPU of capability 8.0 or later",
        )


def _quantization(case: Case, capability: Capability, named: str) -> Iterator[Finding]:
    written, given = case.facts.quantization, case.value("quantization")
    method = str(given or written or "")
    minimum = _MINIMUM.get(method)
    if minimum is not None and capability < minimum:
        yield Finding(
            "fatal",
            "quantization-capability",
            f"{method} needs capability {minimum[0]}.{minimum[1]}, and this is {named}: vLLM refuses it",
            "the kernels use instructions that the card lacks",
            "use a checkpoint in GPTQ or plain 16 bits, or a newer GPU",
        )
    elif method in _EIGHT_BIT_FLOATS and capability < _FP8_CAPABILITY:
        yield Finding(
            "note",
            "quantization-emulated",
            f"{method} saves memory on {named}, but no time: the card has no fp8 arithmetic",
            "vLLM keeps the weights in eight bits and computes in sixteen; fp8 begins at 8.9",
            "AWQ or GPTQ with four bits are as fast there, and smaller",
        )
    elif method in _FOUR_BIT_FLOATS and capability < _FP4_CAPABILITY:
        yield Finding(
            "note",
            "quantization-emulated",
            f"{method} saves memory on {named}, but no time: the card has no fp4 arithmetic",
            "vLLM keeps the weights in four bits and computes in sixteen; fp4 begins at 10.0 (Blackwell)",
        )


def _cache_dtype(case: Case, capability: Capability, named: str) -> Iterator[Finding]:
    given = str(case.value("kv_cache_dtype") or "auto")
    if given.startswith("fp8") and capability < _FP8_CAPABILITY:
        yield Finding(
            "warning",
            "kv-cache-dtype",
            f"{case.variable('kv_cache_dtype')}={given} on {named}: FlashAttention does not read it there",
            "an fp8 cache needs fp8 arithmetic, or a slower backend that converts as it reads; vLLM refuses "
            "to start where none is left",
            "leave KV_CACHE_DTYPE out, or choose a GPU of capability 8.9 or later",
        )
    if given.startswith("nvfp4") and capability < _FP4_CAPABILITY:
        yield Finding(
            "warning",
            "kv-cache-dtype",
            f"{case.variable('kv_cache_dtype')}={given} is made for Blackwell, and this is {named}",
            "fp4 begins at capability 10.0",
            "use KV_CACHE_DTYPE=fp8 or leave it out",
        )


def _attention(case: Case, capability: Capability, named: str) -> Iterator[Finding]:
    backend = str(case.value("attention_backend") or "").upper()
    if backend in _BACKENDS:
        lowest, highest = _BACKENDS[backend]
        if not lowest <= capability <= highest:
            yield Finding(
                "fatal",
                "attention-backend",
                f"{case.variable('attention_backend')}={backend} does not run on {named}: vLLM refuses it",
                f"it is made for capability {lowest[0]}.{lowest[1]}"
                + (" and later" if highest[0] > 90 else f" to {highest[0]}.x"),
                "leave it out: vLLM chooses what runs",
            )
        return
    if capability < _FLASH_CAPABILITY:
        yield Finding(
            "note",
            "attention-slow",
            f"FlashAttention does not run on {named}: vLLM falls back to Triton's kernels",
            "FlashAttention 2 begins at capability 8.0",
            "expect long prompts to be slow there",
        )
    elif case.shape.mla and capability < (9, 0):
        yield Finding(
            "note",
            "mla-capability",
            f"the fast kernels for multi-head latent attention do not run on {named}",
            "FlashMLA and its relatives begin at Hopper (9.0); Triton's kernel stands in",
            "for speed choose H100, H200 or B200",
        )
