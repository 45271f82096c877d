"""Findings about several GPUs: what does not divide, what is missing, what cannot reach the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from worker_vllm import values
from worker_vllm.doctor.case import Case
from worker_vllm.doctor.finding import Finding
from worker_vllm.doctor.gpus import GIB

_VOCABULARY_PADDING = 64
"""vLLM pads a vocabulary to a multiple of this (model_executor/layers/vocab_parallel_embedding.py)."""
_PEER_CAPABILITY = (7, 9)
"""Volta and Turing; what users saw die in a pipeline was V100 on PCIe."""
_SHARED_MEMORY = GIB
_COPIES_ELSEWHERE = ("data_parallel_size_local", "data_parallel_address", "data_parallel_rank")
"""Arguments of data parallel over several machines."""
_RAY_TIMEOUT = "RAY_CGRAPH_get_timeout"


def findings(case: Case) -> Iterator[Finding]:
    """What the number and kind of GPUs say against the case."""
    if case.hardware.platform == "gpu":
        yield from _count(case)
        yield from _pipeline(case)
        yield from _machine(case)
    yield from _division(case)
    yield from _ray(case)


def _division(case: Case) -> Iterator[Finding]:
    size, shape = case.tensor_parallel, case.shape
    if size == 1:
        return
    variable = case.variable("tensor_parallel_size")
    fitting = [n for n in range(1, size + 1) if shape.heads and shape.heads % n == 0]
    remedy = f"set TENSOR_PARALLEL_SIZE to {_either(fitting[-3:])}" if fitting else ""
    if shape.heads and shape.heads % size:
        yield Finding(
            "fatal",
            "parallel-heads",
            f"{variable}={size} does not divide the model's {shape.heads} attention heads",
            "each GPU computes whole heads, and vLLM refuses anything else",
            remedy,
        )
        return
    heads = shape.kv_heads
    if heads and not shape.mla and heads % size and size % heads:
        yield Finding(
            "warning",
            "parallel-kv-heads",
            f"{variable}={size} and the model's {heads} KV heads do not divide each other",
            "most of vLLM's models insist on it",
            remedy,
        )
    padded = -(-shape.vocabulary // _VOCABULARY_PADDING) * _VOCABULARY_PADDING
    if padded % size:
        yield Finding(
            "warning",
            "parallel-vocabulary",
            f"{variable}={size} does not divide the vocabulary of {shape.vocabulary:,}, which vLLM pads to "
            f"{padded:,}",
            "each GPU keeps an equal part of the embedding",
            remedy,
        )
    yield from _quantization_blocks(case, size)


def _quantization_blocks(case: Case, size: int) -> Iterator[Finding]:
    block = _block(case.facts.quantization_config)
    widths = {case.shape.expert_width if case.shape.experts else case.shape.intermediate}
    for width in widths:
        if block and width and width % size == 0 and width // size % block:
            yield Finding(
                "warning",
                "parallel-quantization",
                f"{case.variable('tensor_parallel_size')}={size} leaves {width // size} of {width} columns "
                f"to each GPU, which is no multiple of the quantization's blocks of {block}",
                "vLLM refuses that for many kernels",
                "use fewer GPUs for tensor parallel"
                + (", or ENABLE_EXPERT_PARALLEL=true" if case.shape.experts else ""),
            )


def _block(quantization: Any) -> int:
    blocks = quantization.get("weight_block_size")
    if isinstance(blocks, list) and blocks and isinstance(blocks[0], int):
        return blocks[0]
    group = quantization.get("group_size")
    return group if isinstance(group, int) and group > 0 else 0


def _count(case: Case) -> Iterator[Finding]:
    there, used = case.hardware.count, case.gpus_per_copy
    if not any(case.chosen(name) for name in _COPIES_ELSEWHERE):
        used *= case.data_parallel
    if not there:
        return
    nodes = case.value("nnodes")
    ray = case.value("distributed_executor_backend") == "ray"
    several = (isinstance(nodes, int) and nodes > 1) or (ray and "RAY_ADDRESS" in case.environ)
    asked = _product(case)
    if used > there and not several:
        yield Finding(
            "fatal",
            "gpus-missing",
            f"{asked} needs {used} GPUs, and there {_is(there)} {there}",
            "each GPU holds one part of the model",
            f"set {_fewer(case, there)}, or give the endpoint {used} GPUs a worker",
        )
    elif used < there:
        yield Finding(
            "warning",
            "gpus-idle",
            f"{there - used} of {there} GPUs will do nothing, and cost as much as the others",
            f"the model is spread over {used}" + (f" ({asked})" if used > 1 else ""),
            _use_them(case, there, used),
        )
    names = {device.name for device in case.hardware.devices}
    if len(names) > 1 and used > 1:
        yield Finding(
            "warning",
            "gpus-differ",
            f"the GPUs are of several kinds: {', '.join(sorted(names))}",
            "the one with the least memory and the slowest set the pace for all",
            "use GPUs of one kind",
        )


def _fewer(case: Case, there: int) -> str:
    """The settings that make do with the GPUs that are there."""
    if case.gpus_per_copy <= there:
        return f"DATA_PARALLEL_SIZE={there // case.gpus_per_copy}"
    most = max(n for n in range(1, there + 1) if case.shape.heads % n == 0)
    others = {"PIPELINE_PARALLEL_SIZE": case.pipeline_parallel, "DATA_PARALLEL_SIZE": case.data_parallel}
    ones = [f"{name}=1" for name, size in others.items() if size > 1]
    return " and ".join([f"TENSOR_PARALLEL_SIZE={most}", *ones])


def _use_them(case: Case, there: int, used: int) -> str:
    fewer = f"give the endpoint {used} GPU{'s' * (used > 1)} a worker"
    heads = case.shape.heads
    return fewer if heads and heads % there else f"set TENSOR_PARALLEL_SIZE={there}, or {fewer}"


def _pipeline(case: Case) -> Iterator[Finding]:
    stages, total = case.pipeline_parallel, case.gpus_per_copy
    if stages == 1:
        return
    capability, peer = case.hardware.capability, case.hardware.peer_access
    instead = (
        f"set TENSOR_PARALLEL_SIZE={total} and PIPELINE_PARALLEL_SIZE=1"
        if not case.shape.heads or case.shape.heads % total == 0
        else "set PIPELINE_PARALLEL_SIZE=1 and a TENSOR_PARALLEL_SIZE that divides "
        f"{case.shape.heads} attention heads"
    )
    if capability is not None and capability <= _PEER_CAPABILITY and peer is not True:
        card = case.hardware.devices[0].name
        yield Finding(
            "fatal" if peer is False else "warning",
            "pipeline-without-peer-access",
            f"pipeline parallel on {card} starts, and dies minutes later when the first stage hands over to "
            "the next",
            "the stages write into each other's memory, which these cards can do over NVLink alone; Ray's "
            "message about _accelerator_group comes from the clean-up",
            instead,
        )
    elif case.hardware.count >= total and case.value("nnodes") in (None, 1):
        yield Finding(
            "note",
            "pipeline-on-one-node",
            f"pipeline parallel in one machine: {stages} stages that wait for each other",
            "it is made for several machines, where tensor parallel is too slow",
            instead,
        )


def _machine(case: Case) -> Iterator[Finding]:
    shared, several = case.hardware.shared_memory, case.gpus_per_copy > 1
    if shared is not None and several and shared < _SHARED_MEMORY:
        yield Finding(
            "warning",
            "shared-memory",
            f"/dev/shm has {shared >> 20} MiB, and {case.gpus_per_copy} GPUs exchange data through it",
            "Docker gives 64 MiB unless told otherwise; NCCL then fails, or hangs",
            "run the container with --ipc=host, or with --shm-size=8g",
        )
    driver, built = case.hardware.driver_cuda, case.hardware.torch_cuda
    if driver is not None and built is not None and driver // 1000 < built[0]:
        yield Finding(
            "warning",
            "driver-too-old",
            f"the driver supports CUDA {driver // 1000}.{driver % 1000 // 10}, and torch is built for "
            f"{built[0]}.{built[1]}",
            "without NVIDIA's forward-compatibility libraries in the image torch finds no GPU",
            "choose that CUDA version or later in the endpoint's settings",
        )


def _ray(case: Case) -> Iterator[Finding]:
    nodes = case.value("nnodes")
    local = not isinstance(nodes, int) or nodes == 1
    if (
        case.value("distributed_executor_backend") == "ray"
        and local
        and values.is_unset(case.environ.get("RAY_ADDRESS"))
    ):
        yield Finding(
            "warning",
            "ray-on-one-node",
            f"{case.variable('distributed_executor_backend')}=ray starts a Ray cluster for GPUs that are all "
            "in one machine",
            "it costs tens of seconds at each start and gigabytes of memory; a serverless worker is one "
            "machine",
            "remove it: vLLM's own processes (mp) do the same",
        )
    if not values.is_unset(case.environ.get(_RAY_TIMEOUT)) and case.pipeline_parallel == 1:
        yield Finding(
            "note",
            "ray-timeout",
            f"{_RAY_TIMEOUT} is set and has no effect",
            "it bounds how long a pipeline's stage waits in Ray, and there is no pipeline",
            "remove it",
        )


def _product(case: Case) -> str:
    parts = {
        "tensor_parallel_size": case.tensor_parallel,
        "pipeline_parallel_size": case.pipeline_parallel,
        "data_parallel_size": case.data_parallel,
    }
    shown = [f"{name.upper()}={size}" for name, size in parts.items() if size > 1]
    return " x ".join(shown) or "the model"


def _either(numbers: list[int]) -> str:
    words = [str(number) for number in reversed(numbers)]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
