"""How vLLM divides the KV cache into blocks, and what a number of bytes holds.

Mirrors vllm/v1/core/kv_cache_utils.py (get_kv_cache_groups and what it calls): layers of one kind share a
block table; where there are several kinds, they are cut into groups of equally many layers, and one block
belongs to one group. tests/vllm/test_doctor_figures.py compares the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from worker_vllm.doctor.layers import CacheLayers, Kind

BLOCK_TOKENS = 16
"""vLLM's block size where nobody sets one."""
LATENT_ALIGNMENT = 128
"""Blocks of a model with a latent and recurrent layers come in multiples of this."""


@dataclass(frozen=True)
class Group:
    """Block tables of one kind.

    Attributes:
        tables: how many block tables of this kind a request has.
        window: see `CacheLayers`.
    """

    kind: Kind
    tables: int
    window: int = 0


@dataclass(frozen=True)
class CachePlan:
    """A model's cache on one GPU.

    Attributes:
        block_tokens: tokens in a block of a layer that keeps tokens.
        bytes_per_block: of the layers of one group. 0 for a model without a cache.
        groups: the kinds.
        in_flight: tokens that may be scheduled and not yet settled; a window keeps them, too.
        states: blocks that a recurrent layer keeps per request: two where prefixes are cached.
    """

    block_tokens: int
    bytes_per_block: int
    groups: tuple[Group, ...]
    in_flight: int
    states: int = 1

    def blocks_for(self, length: int) -> int:
        """Blocks that a request of `length` tokens takes at most."""
        return sum(group.tables * self._blocks(group, length) for group in self.groups)

    def _blocks(self, group: Group, length: int) -> int:
        if group.kind == "state":
            return self.states
        if group.kind == "cross":
            return _up(group.window, self.block_tokens)
        if group.kind == "window":
            # a window need not begin at the beginning of a block
            return _up(min(group.window - 1 + self.in_flight, length), self.block_tokens) + 1
        if group.kind == "chunk":
            return _up(min(group.window + self.in_flight, length), self.block_tokens)
        return _up(length, self.block_tokens)

    def bytes_for(self, length: int) -> int:
        """Bytes that a request of `length` tokens takes at most."""
        return self.blocks_for(length) * self.bytes_per_block

    def requests(self, available: int, length: int) -> float:
        """How many requests of `length` tokens fit in `available` bytes."""
        blocks = self.blocks_for(length)
        return available // self.bytes_per_block / blocks if self.bytes_per_block and blocks else 0.0

    def tokens(self, available: int, length: int) -> int:
        """What vLLM's log gives as the size of the cache: tokens in requests of `length` tokens."""
        return int(self.requests(available, length) * length)

    def longest(self, available: int, limit: int) -> int:
        """The longest request of at most `limit` tokens that fits in `available` bytes; 0 if none does."""
        low, high = 0, limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.bytes_for(middle) <= available:
                low = middle
            else:
                high = middle - 1
        return low


def plan(
    caches: Sequence[CacheLayers],
    *,
    gpus: int,
    stages: int = 1,
    element: int,
    model_element: int,
    state_element: int | None = None,
    block_tokens: int = BLOCK_TOKENS,
    in_flight: int = 4096,
    prefix_caching: bool = True,
    hybrid: bool = True,
) -> CachePlan:
    """The plan for layers of these kinds.

    Args:
        gpus: tensor parallel size. stages: pipeline parallel size.
        element: bytes of an element of the cache. model_element: of the model's own data type.
        state_element: of a recurrent state; None for what the model says.
        block_tokens: vLLM's block size.
        prefix_caching: whether recurrent layers keep a second state for it.
        hybrid: whether kinds are kept apart; otherwise every token is kept for every layer.
    """
    counted = [(layers, _up(layers.count, stages)) for layers in caches if layers.count]
    per_token = {layers: layers.bytes_per_token(gpus, element) for layers, _ in counted if not layers.state}
    state_bytes = max(
        (_state_bytes(layers, gpus, model_element, state_element) for layers, _ in counted), default=0
    )
    if not counted:
        return CachePlan(block_tokens, 0, (), in_flight)
    if not per_token:
        # only states: one table, and a block is one state of every layer
        total = sum(count for _, count in counted)
        return CachePlan(block_tokens, total * state_bytes, (Group("state", 1),), in_flight, states=1)
    token_bytes = max(per_token.values())
    if state_bytes:
        alignment = max(block_tokens, LATENT_ALIGNMENT if _has_latent(caches) else 1)
        block_tokens = max(block_tokens, alignment * _up(state_bytes, alignment * token_bytes))
    page = block_tokens * token_bytes
    buckets = _buckets(counted, hybrid=hybrid)
    states = 2 if prefix_caching and state_bytes else 1
    if len(buckets) == 1:
        (bucket,) = buckets
        size = sum(block_tokens * per_token[layers] * count for layers, count in bucket)
        group = Group(bucket[0][0].kind if hybrid else "full", 1, bucket[0][0].window)
        return CachePlan(block_tokens, size, (group,), in_flight, states)
    numbers = [sum(count for _, count in bucket) for bucket in buckets]
    smallest, largest = min(numbers), max(numbers)
    # padding costs less than many small groups where the numbers are close
    group_size = largest if largest < smallest * 1.5 else smallest
    groups = tuple(
        Group(bucket[0][0].kind, _up(number, group_size), bucket[0][0].window)
        for bucket, number in zip(buckets, numbers, strict=True)
    )
    return CachePlan(block_tokens, group_size * page, groups, in_flight, states)


def _buckets(
    counted: Sequence[tuple[CacheLayers, int]], *, hybrid: bool
) -> list[list[tuple[CacheLayers, int]]]:
    """Layers that share block tables."""
    buckets: dict[object, list[tuple[CacheLayers, int]]] = {}
    for layers, count in counted:
        merges = not hybrid and layers.kind in ("window", "chunk")
        key = "full" if merges or layers.kind == "full" else (layers.kind, layers.window)
        buckets.setdefault(key, []).append((layers, count))
    return list(buckets.values())


def _state_bytes(layers: CacheLayers, gpus: int, model_element: int, state_element: int | None) -> int:
    if layers.state is None:
        return 0
    stated = ELEMENT_BYTES.get(layers.state.dtype or "", model_element)
    return layers.state.bytes(gpus, model_element, state_element or stated)


def _has_latent(caches: Sequence[CacheLayers]) -> bool:
    return any(layers.replicated for layers in caches)


ELEMENT_BYTES = {
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "float16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
    "int8": 1,
}
"""Bytes of an element, by vLLM's names of data types."""


def _up(number: int, divisor: int) -> int:
    return -(-number // divisor)
