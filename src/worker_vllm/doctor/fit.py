"""Findings about memory: what does not fit, how long a context would, and which GPUs would do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from worker_vllm import values
from worker_vllm.doctor import capability, gpus, hardware, memory, topology
from worker_vllm.doctor.case import Case
from worker_vllm.doctor.finding import Finding
from worker_vllm.doctor.gpus import GIB

_FEW = 2.0
_PRICE_OF_SHARING = 0.1
"""What each further GPU adds to a price, as a share: GPUs that share a layer wait for each other."""


def findings(case: Case, pool: tuple[int, str] | None = None) -> Iterator[Finding]:
    """What memory says against the case.

    Args:
        pool: what `smallest_pool` gave, to recommend where something does not fit.
    """
    if case.hardware.platform == "cpu":
        yield from _on_the_host(case)
        return
    held = memory.budget(case)
    if held is None:
        return
    problems = list(_weights(case, held)) or list(_context(case, held))
    yield from problems
    yield from _in_use(case, held)
    if problems and pool is not None:
        yield _better(*pool)


def _weights(case: Case, held: memory.Budget) -> Iterator[Finding]:
    if held.fixed_cache or held.cache > 0:
        return
    # without the estimate: only weights that are more than the whole share are certain to fail
    certain = held.weights_exact and case.surely_loaded >= held.share
    working = held.activations + held.graphs
    each = " on each GPU" if case.gpus_per_copy > 1 else ""
    yield Finding(
        "fatal" if certain else "warning",
        "weights-too-large",
        f"the weights take {_gib(held.weights)}{each}, and vLLM may use {_gib(held.share)}"
        + ("" if certain else f", of which a step's working memory takes about {_gib(working)}"),
        f"{_share_of(case, held)}; the weights by {held.weights_source}",
        f"use more or larger GPUs{_quantized_hint(case)}{_share_hint(case, held)}",
    )


def _context(case: Case, held: memory.Budget) -> Iterator[Finding]:
    plan, length = case.plan, case.max_model_len
    if plan is None or not plan.bytes_per_block or not length:
        return
    available, override = held.cache, case.value("num_gpu_blocks_override")
    if isinstance(override, int) and override > 0:
        available = override * plan.bytes_per_block
    requests = plan.requests(available, length)
    if requests < 1:
        yield from _too_long(case, held, available, length)
    elif requests < _FEW and case.max_num_seqs > 1:
        yield Finding(
            "note",
            "few-requests",
            f"about {requests:.1f} requests of the full {length:,} tokens fit at once; shorter ones share "
            f"{plan.tokens(available, length):,} tokens of KV cache, and the rest waits",
            f"{_per_token(case, length)} of KV cache a token",
            "if requests are shorter, set MAX_MODEL_LEN to what they need: nothing else changes",
        )


def _too_long(case: Case, held: memory.Budget, available: int, length: int) -> Iterator[Finding]:
    assert case.plan is not None
    longest = case.plan.longest(available, length)
    if case.fits_context_itself:
        yield Finding(
            "note",
            "context-does-not-fit",
            f"vLLM will shorten the context from {length:,} tokens to about {longest:,}",
            "MAX_MODEL_LEN=auto asks for what fits",
        )
        return
    needed = case.plan.bytes_for(length)
    # with all the share but the weights for the cache it would still not do
    most = available if held.fixed_cache else held.share - case.surely_loaded
    certain = needed > most and case.cache_is_certain and (held.weights_exact or held.fixed_cache)
    rounded = longest // 1024 * 1024 or longest
    chosen = case.chosen("max_model_len")
    cause = f"{case.variable('max_model_len')}={length}" if chosen else "the model's own context length"
    yield Finding(
        "fatal" if certain else "warning",
        "context-does-not-fit",
        f"one request of {length:,} tokens needs {_gib(needed)} of KV cache, and there will be about "
        f"{_gib(max(available, 0))}: vLLM refuses to start",
        f"{cause}; {_per_token(case, length)} a token",
        (
            f"set MAX_MODEL_LEN={rounded} (about {longest:,} tokens fit){_cache_hint(case)}"
            if longest
            else "use more or larger GPUs"
        )
        + _share_hint(case, held),
    )


def _cache_hint(case: Case) -> str:
    capability = case.hardware.capability
    eight_bits = case.cache_element == 2 and capability is not None and capability >= (8, 9)
    return ", or KV_CACHE_DTYPE=fp8, which halves the cache" if eight_bits else ""


def _share_hint(case: Case, held: memory.Budget) -> str:
    """What else would do, where somebody chose less memory or a larger step than vLLM does."""
    if held.fixed_cache:
        return ""
    small = case.chosen("gpu_memory_utilization") and held.share < 0.9 * held.total
    hints = [f", or raise {case.variable('gpu_memory_utilization')}"] if small else []
    if held.activations > held.share // 2:
        steps = ("max_num_seqs", "max_num_batched_tokens")
        hints += [f", or lower {case.variable(name)}" for name in steps if case.chosen(name)]
    return "".join(hints)


def _quantized_hint(case: Case) -> str:
    if case.facts.quantization or case.value("quantization") or case.hardware.capability is None:
        return ""
    if case.hardware.capability >= (8, 9):
        return ", or QUANTIZATION=fp8, which about halves the weights as they load"
    return ", or an AWQ or GPTQ checkpoint, which is about a quarter as large"


def _in_use(case: Case, held: memory.Budget) -> Iterator[Finding]:
    if held.fixed_cache:
        return
    for number, device in enumerate(case.hardware.devices):
        if device.free is None:
            continue
        utilization = held.share / held.total
        if device.free < device.memory * utilization:
            fits = max(device.free / device.memory - 0.02, 0)
            yield Finding(
                "warning",
                "gpu-memory-in-use",
                f"GPU {number} has {_gib(device.free)} free of {_gib(device.memory)}, and vLLM wants "
                f"{_gib(int(device.memory * utilization))}: it refuses to start if that stays so",
                "another process holds the rest",
                f"end it, or set GPU_MEMORY_UTILIZATION={int(fits * 100) / 100:g}",
            )
            return


def _better(count: int, pool: str) -> Finding:
    kinds = ", ".join(kind.name for kind in gpus.members(pool))
    return Finding(
        "note",
        "pool",
        f"the smallest choice of RunPod's that would do: {count} x {pool} ({kinds})",
        "by flex price per second, with the smallest GPU of each pool; one large GPU goes before several "
        "small ones where the price is near",
        f"choose it in the endpoint's settings{f', with {count} GPUs a worker' if count > 1 else ''}",
    )


def smallest_pool(case: Case) -> tuple[int, str] | None:
    """The number of GPUs and the pool that cost least, and hold the model and one request of the full
    length."""
    offers = sorted(
        (price * count * (1 + _PRICE_OF_SHARING * (count - 1)), count, pool)
        for pool, price in gpus.PRICES.items()
        for count in gpus.COUNTS
    )
    for _, count, pool in offers:
        if _would_do(case, count, gpus.members(pool)[0]):
            return count, pool
    return None


def _would_do(case: Case, count: int, kind: gpus.GpuKind) -> bool:
    sizes = {"tensor_parallel_size": count, "pipeline_parallel_size": 1, "data_parallel_size": 1}
    changed = {
        name: replace(case.arguments[name], value=size)
        for name, size in sizes.items()
        if name in case.arguments
    }
    other = replace(case, hardware=hardware.of_kind(kind, count), arguments={**case.arguments, **changed})
    held = memory.budget(other)
    if held is None or held.cache <= 0:
        return False
    spoken = (*capability.findings(other), *topology.findings(other))
    if any(finding.level != "note" for finding in spoken):
        return False
    plan, length = other.plan, other.max_model_len
    if plan is None or not plan.bytes_per_block or not length:
        return held.cache > 0
    return plan.requests(held.cache, length) >= 1


def _on_the_host(case: Case) -> Iterator[Finding]:
    size, free = case.weights.bytes, case.hardware.host_memory
    cache = case.value("kv_cache_memory_bytes")
    space = case.environ.get("VLLM_CPU_KVCACHE_SPACE", "")
    if not isinstance(cache, int):
        try:
            cache = 0 if values.is_unset(space) else int(space) * GIB  # as vLLM reads it (envs.py)
        except ValueError:
            yield Finding(
                "fatal",
                "host-memory",
                f"VLLM_CPU_KVCACHE_SPACE={values.shown(space)} is no whole number of GiB",
                "vLLM reads no other",
                "set it to a whole number, or leave it out",
            )
            return
    if size and free and size + cache > free:
        yield Finding(
            "warning",
            "host-memory",
            f"weights ({_gib(size)}) and KV cache ({_gib(cache)}) are more than the {_gib(free)} of memory "
            "that can be had",
            f"the weights by {case.weights.source}",
            "use a smaller model, or set VLLM_CPU_KVCACHE_SPACE to fewer GiB",
        )
    plan, length = case.plan, case.max_model_len
    if plan is None or not length or not cache or case.fits_context_itself:
        return
    needed = plan.bytes_for(length)
    if needed > cache:
        yield Finding(
            "fatal" if case.cache_is_certain and plan.longest(cache, length) < 0.9 * length else "warning",
            "context-does-not-fit",
            f"one request of {length:,} tokens needs {_gib(needed)} of KV cache, and there are {_gib(cache)}",
            "VLLM_CPU_KVCACHE_SPACE, or the share of the memory that the worker chose",
            f"set MAX_MODEL_LEN={plan.longest(cache, length)}, or VLLM_CPU_KVCACHE_SPACE={-(-needed // GIB)}",
        )


def _share_of(case: Case, held: memory.Budget) -> str:
    utilization = held.share / held.total
    return f"{utilization:.0%} (gpu_memory_utilization) of {_gib(held.total)}"


def _per_token(case: Case, length: int) -> str:
    assert case.plan is not None
    return f"{case.plan.bytes_for(length) / length / 1024:.1f} KiB"


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB"
