"""Defaults that depend on the machine, and arguments that follow from other arguments."""

from __future__ import annotations

from collections.abc import Mapping

from worker_vllm import values
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.configuration.machine import Machine
from worker_vllm.configuration.model_config import Reader, attention_heads, can_be_shared
from worker_vllm.configuration.report import Report
from worker_vllm.settings import Effective

GIB = 1024**3
_KV_CACHE_SHARE = 0.25
_KV_CACHE_BOUNDS = (1 * GIB, 4 * GIB)
_OTHER_PARALLEL = ("pipeline_parallel_size", "data_parallel_size", "prefill_context_parallel_size")


def derive(
    chosen: Mapping[str, Effective],
    environ: Mapping[str, str],
    machine: Machine,
    table: ArgumentTable,
    read_model_config: Reader,
    report: Report,
) -> dict[str, Effective]:
    """The arguments that nobody chose and that should not keep vLLM's default here, by name."""
    derived: dict[str, Effective] = {}
    if machine.platform == "cpu":
        derived |= cpu_defaults(environ, machine)
        eager = chosen.get("enforce_eager")
        if eager is not None and not eager.value:
            report.warn(f"{eager.variable}=false: compiled bfloat16 has given wrong text on a CPU")
    elif machine.gpus > 1 and not _is_parallel(chosen):
        derived |= tensor_parallel(chosen, machine, read_model_config, report)
    derived |= consequences(chosen, table)
    return {name: value for name, value in derived.items() if name not in chosen and name in table.by_name}


def _is_parallel(chosen: Mapping[str, Effective]) -> bool:
    # the forms send 1 for the others too, and that is no choice about the GPUs
    return "tensor_parallel_size" in chosen or any(
        name in chosen and chosen[name].value != 1 for name in _OTHER_PARALLEL
    )


def cpu_defaults(environ: Mapping[str, str], machine: Machine) -> dict[str, Effective]:
    """On a CPU: no compilation, which gives wrong text there in bfloat16 and takes a minute, and a KV cache
    that leaves room for the weights."""
    defaults = {"enforce_eager": Effective(True, "profile")}
    if values.is_unset(environ.get("VLLM_CPU_KVCACHE_SPACE")):
        smallest, largest = _KV_CACHE_BOUNDS
        size = int(machine.free_memory * _KV_CACHE_SHARE) // GIB * GIB
        defaults["kv_cache_memory_bytes"] = Effective(min(max(size, smallest), largest), "profile")
    return defaults


def tensor_parallel(
    chosen: Mapping[str, Effective], machine: Machine, read_model_config: Reader, report: Report
) -> dict[str, Effective]:
    """As many of the visible GPUs as divide the model: its heads, and its vocabulary."""
    model, revision = chosen.get("model"), chosen.get("revision")
    config = read_model_config(str(model.value), revision.value if revision else None) if model else None
    heads = attention_heads(config or {})
    if heads is None:
        size = 1 << (machine.gpus.bit_length() - 1)  # few models have heads in threes, fives or sevens
        report.warn(
            f"the model's number of attention heads is not known yet; using {size} of {machine.gpus} GPUs "
            "(TENSOR_PARALLEL_SIZE sets it)"
        )
        return {"tensor_parallel_size": Effective(size, "profile")}
    size = max(n for n in range(1, machine.gpus + 1) if can_be_shared(config or {}, n))
    if size < machine.gpus:
        what = f"{heads} attention heads" if heads % machine.gpus else "KV heads and vocabulary"
        report.warn(f"using {size} of {machine.gpus} GPUs: {what} do not divide by more")
    return {"tensor_parallel_size": Effective(size, "profile")}


def consequences(chosen: Mapping[str, Effective], table: ArgumentTable) -> dict[str, Effective]:
    """What an argument implies about another."""
    implied: dict[str, Effective] = {}
    adapters = chosen.get("lora_modules")
    if adapters is not None:
        implied["enable_lora"] = Effective(True, "profile", adapters.variable)
    # bitsandbytes weights come with their own loader, as long as vLLM had it
    load_format = chosen.get("load_format")
    known = table.registries.get("quantization", ())
    if load_format is not None and load_format.value == "bitsandbytes" and load_format.value in known:
        implied["quantization"] = Effective("bitsandbytes", "profile", load_format.variable)
    for name in ("kv_transfer_config", "kv_offloading_backend"):
        cache = chosen.get(name)
        if cache is not None and "lmcache" in str(cache.value).lower():
            # LMCache's connector moves whole layers of one kind
            implied["disable_hybrid_kv_cache_manager"] = Effective(True, "profile", cache.variable)
    return implied
