"""The GPUs that RunPod rents, as data, and how a request for some of them is read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from worker_vllm.configuration.nearest import nearest

GIB = 1024**3


@dataclass(frozen=True)
class GpuKind:
    """One kind of GPU.

    Attributes:
        name: what people call it.
        memory_gib: what CUDA can give out, as its own messages state it. Drivers and ECC move it by a
            percent.
        capability: CUDA's compute capability, major and minor.
        nvlink: whether several of them in one machine are joined by NVLink.
        pool: RunPod's pool; "" where it rents them by name alone.
        ids: RunPod's GPU ids (and what NVML calls them).
    """

    name: str
    memory_gib: float
    capability: tuple[int, int]
    nvlink: bool = False
    pool: str = ""
    ids: tuple[str, ...] = ()

    @property
    def memory(self) -> int:
        """Bytes that CUDA can give out."""
        return int(self.memory_gib * GIB)


# Pools and ids: runpod/docs references/gpu-types.mdx. Capabilities: developer.nvidia.com/cuda-gpus. Memory:
# what CUDA's out-of-memory messages give as total capacity, which is less than the label says.
KINDS: tuple[GpuKind, ...] = (
    GpuKind("V100", 15.77, (7, 0), ids=("Tesla V100-PCIE-16GB",)),
    GpuKind("V100 SXM2", 15.77, (7, 0), nvlink=True, ids=("Tesla V100-SXM2-16GB",)),
    GpuKind("V100 SXM2 32 GB", 31.73, (7, 0), nvlink=True, ids=("Tesla V100-SXM2-32GB",)),
    GpuKind("T4", 14.56, (7, 5), ids=("Tesla T4",)),
    GpuKind("RTX A4000", 15.70, (8, 6), pool="AMPERE_16", ids=("NVIDIA RTX A4000",)),
    GpuKind("RTX A4500", 19.70, (8, 6), pool="AMPERE_16", ids=("NVIDIA RTX A4500",)),
    GpuKind("RTX 2000 Ada", 15.60, (8, 9), pool="AMPERE_16", ids=("NVIDIA RTX 2000 Ada Generation",)),
    GpuKind("RTX 4000 Ada", 19.55, (8, 9), pool="AMPERE_16", ids=("NVIDIA RTX 4000 Ada Generation",)),
    GpuKind("L4", 22.03, (8, 9), pool="AMPERE_24", ids=("NVIDIA L4",)),
    GpuKind("RTX A5000", 23.67, (8, 6), pool="AMPERE_24", ids=("NVIDIA RTX A5000",)),
    GpuKind("RTX 3090", 23.68, (8, 6), pool="AMPERE_24", ids=("NVIDIA GeForce RTX 3090",)),
    GpuKind("A30", 23.50, (8, 0), ids=("NVIDIA A30",)),
    GpuKind("RTX 4090", 23.53, (8, 9), pool="ADA_24", ids=("NVIDIA GeForce RTX 4090",)),
    GpuKind("RTX 5090", 31.35, (12, 0), pool="ADA_32_PRO", ids=("NVIDIA GeForce RTX 5090",)),
    GpuKind("A40", 44.34, (8, 6), pool="AMPERE_48", ids=("NVIDIA A40",)),
    GpuKind("RTX A6000", 47.43, (8, 6), pool="AMPERE_48", ids=("NVIDIA RTX A6000",)),
    GpuKind("L40", 44.39, (8, 9), pool="ADA_48_PRO", ids=("NVIDIA L40",)),
    GpuKind("L40S", 44.39, (8, 9), pool="ADA_48_PRO", ids=("NVIDIA L40S",)),
    GpuKind("RTX 6000 Ada", 47.37, (8, 9), pool="ADA_48_PRO", ids=("NVIDIA RTX 6000 Ada Generation",)),
    GpuKind("A100", 79.15, (8, 0), pool="AMPERE_80", ids=("NVIDIA A100 80GB PCIe",)),
    GpuKind("A100 SXM", 79.15, (8, 0), nvlink=True, pool="AMPERE_80", ids=("NVIDIA A100-SXM4-80GB",)),
    GpuKind("H100", 79.11, (9, 0), nvlink=True, pool="ADA_80_PRO", ids=("NVIDIA H100 80GB HBM3",)),
    GpuKind("H100 PCIe", 79.11, (9, 0), pool="ADA_80_PRO", ids=("NVIDIA H100 PCIe",)),
    GpuKind("H100 NVL", 93.10, (9, 0), nvlink=True, pool="ADA_80_PRO", ids=("NVIDIA H100 NVL",)),
    GpuKind("H200", 139.80, (9, 0), nvlink=True, pool="HOPPER_141", ids=("NVIDIA H200", "NVIDIA H200 NVL")),
    GpuKind(
        "RTX PRO 6000",
        94.97,
        (12, 0),
        pool="BLACKWELL_96",
        ids=(
            "NVIDIA RTX PRO 6000 Blackwell Server Edition",
            "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        ),
    ),
    GpuKind("B200", 178.35, (10, 0), nvlink=True, pool="BLACKWELL_180", ids=("NVIDIA B200",)),
    GpuKind("B300", 267.00, (10, 3), nvlink=True, ids=("NVIDIA B300 SXM6 AC",)),
)
"""By capability and memory, small to large."""

ALIASES: dict[str, str] = {
    "A100 PCIe": "A100",
    "A100 80GB": "A100",
    "A100 SXM4": "A100 SXM",
    "H100 SXM": "H100",
    "H100 SXM5": "H100",
    "H100 80GB": "H100",
    "H200 SXM": "H200",
    "RTX PRO 6000 WK": "RTX PRO 6000",
}
"""Other words for a kind, RunPod's console's among them."""

PRICES: dict[str, int] = {
    "AMPERE_16": 16,
    "AMPERE_24": 19,
    "ADA_24": 31,
    "AMPERE_48": 34,
    "ADA_48_PRO": 53,
    "AMPERE_80": 76,
    "ADA_80_PRO": 116,
    "HOPPER_141": 155,
    "BLACKWELL_180": 240,
}
"""Pool to flex price per second and GPU in 0.00001 USD (docs.runpod.io/serverless/pricing), for the order
alone: prices move. Pools that the page does not price are not recommended."""

COUNTS = (1, 2, 4, 8)
"""How many GPUs of a machine are worth recommending."""

_REQUEST = re.compile(r"\s*(?:(?P<count>\d+)\s*[x×*]\s*)?(?P<kind>\S.*?)(?:\s*[x×*]\s*(?P<after>\d+))?\s*$")


def members(pool: str) -> list[GpuKind]:
    """The kinds in a pool, the smallest first: a worker may get any of them."""
    return sorted((kind for kind in KINDS if kind.pool == pool), key=lambda kind: kind.memory_gib)


def by_id(name: str) -> GpuKind | None:
    """The kind that NVML or RunPod calls `name`."""
    return next((kind for kind in KINDS if name in kind.ids), None)


def read_request(text: str) -> tuple[int, GpuKind]:
    """What `2xH200`, `H200 x2`, `H200`, `NVIDIA H200` or `2xHOPPER_141` ask for; of a pool, its smallest
    member.

    Raises:
        ValueError: naming the nearest kind.
    """
    found = _REQUEST.match(text)
    count = int(found["count"] or found["after"] or 1) if found else 0
    if not found or not 1 <= count <= 64 or (found["count"] and found["after"]):
        raise ValueError("expected a number and a kind of GPU, such as 2xH200")
    wanted = _folded(found["kind"])
    names: dict[str, GpuKind] = {}
    for kind in KINDS:
        for name in (kind.name, *kind.ids):
            names.setdefault(_folded(name), kind)
    for name, other in ALIASES.items():
        names.setdefault(_folded(name), names[_folded(other)])
    for pool in {kind.pool for kind in KINDS if kind.pool}:
        names[_folded(pool)] = members(pool)[0]
    if wanted in names:
        return count, names[wanted]
    near = nearest(wanted, tuple(names))
    hint = f"; did you mean {names[near].name}?" if near else ""
    raise ValueError(f"no GPU that RunPod rents is called {found['kind']!r}{hint}")


def _folded(name: str) -> str:
    text = re.sub(r"nvidia|tesla|geforce|\brtx|generation|[^a-z0-9]", "", name.lower())
    return re.sub(r"(?<=\d)gb$", "", text)
