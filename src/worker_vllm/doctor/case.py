"""One case for the doctor: a model, vLLM's arguments, and what it is to run on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from worker_vllm import values
from worker_vllm.doctor import cache_plan, shape, weights
from worker_vllm.doctor.cache_plan import CachePlan
from worker_vllm.doctor.gpus import GIB
from worker_vllm.doctor.hardware import Hardware
from worker_vllm.doctor.shape import ModelShape
from worker_vllm.doctor.weights import WeightSize
from worker_vllm.models.facts import ModelFacts
from worker_vllm.settings import Effective

NO_FLOAT16 = frozenset({"gemma2", "gemma3", "gemma3_text", "glm4"})
"""Families that vLLM does not run in float16 (vllm/config/model.py): they overflow."""

BFLOAT16_CAPABILITY = (8, 0)
_CONTEXT_PARALLEL = ("decode_context_parallel_size", "prefill_context_parallel_size")
_LARGE = 70 * GIB
_LARGEST = 160 * GIB


@dataclass(frozen=True)
class Case:
    """What the findings are derived from.

    Attributes:
        facts: the model.
        arguments: vLLM's arguments, of engine and front end, by name, each with its source.
        hardware: what it is to run on.
        environ: the environment, for variables that vLLM and its libraries read themselves.
        parsers: names that vLLM's registries have, by argument; empty where not known.
    """

    facts: ModelFacts
    arguments: Mapping[str, Effective]
    hardware: Hardware
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    parsers: Mapping[str, tuple[str, ...]] = field(default_factory=dict, repr=False)

    def value(self, name: str) -> Any:
        """The effective value of one of vLLM's arguments; None where this vLLM has no such argument."""
        effective = self.arguments.get(name)
        return effective.value if effective is not None else None

    def chosen(self, name: str) -> bool:
        """Whether somebody chose it: neither vLLM's default nor the machine's profile."""
        effective = self.arguments.get(name)
        return effective is not None and effective.source not in ("default", "profile")

    def variable(self, name: str) -> str:
        """What sets it, for messages."""
        effective = self.arguments.get(name)
        return (effective.variable if effective is not None else None) or name.upper()

    def _size(self, name: str) -> int:
        found = self.value(name)
        return found if isinstance(found, int) and found > 0 else 1

    @property
    def tensor_parallel(self) -> int:
        """GPUs that share each layer."""
        return self._size("tensor_parallel_size")

    @property
    def pipeline_parallel(self) -> int:
        """Stages of layers."""
        return self._size("pipeline_parallel_size")

    @property
    def data_parallel(self) -> int:
        """Copies of the model."""
        return self._size("data_parallel_size")

    @property
    def gpus_per_copy(self) -> int:
        """GPUs that share the weights of one copy."""
        return self.tensor_parallel * self.pipeline_parallel

    @cached_property
    def shape(self) -> ModelShape:
        """The model's shape."""
        return shape.read(self.facts.config, self.value("hf_overrides"))

    @property
    def lacks_bfloat16(self) -> bool:
        """Whether one of the GPUs has no bfloat16."""
        capability = self.hardware.capability
        return capability is not None and capability < BFLOAT16_CAPABILITY

    @property
    def dtype(self) -> str:
        """What the model will run in, by vLLM's rules for dtype=auto."""
        given = str(self.value("dtype") or "auto").lower()
        if given != "auto":
            return {"half": "float16", "float": "float32"}.get(given, given)
        unstable = self.shape.family in NO_FLOAT16 or self.shape.whole in NO_FLOAT16
        preferred = ("float32" if unstable else "float16") if self.lacks_bfloat16 else "bfloat16"
        written = self.shape.dtype
        if written == "float16" and not unstable:
            return "float16"
        return preferred if written != "bfloat16" or self.lacks_bfloat16 else "bfloat16"

    @property
    def element(self) -> int:
        """Bytes of an element of the model's data type."""
        return cache_plan.ELEMENT_BYTES.get(self.dtype, 2)

    @property
    def cache_element(self) -> int | None:
        """Bytes of an element of the KV cache; None for a packed type whose size is not known here."""
        given = str(self.value("kv_cache_dtype") or "auto").lower()
        if given == "auto":
            return 1 if self._checkpoint_has_fp8_cache() else self.element
        return cache_plan.ELEMENT_BYTES.get(given)

    def _checkpoint_has_fp8_cache(self) -> bool:
        quantization = self.facts.quantization_config
        scheme = quantization.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("num_bits") == 8:
            return True
        inner = quantization.get("quantization")
        algorithm = quantization.get("kv_cache_quant_algo")
        if isinstance(inner, Mapping):
            algorithm = algorithm or inner.get("kv_cache_quant_algo")
        return str(algorithm or "").upper() == "FP8"

    @property
    def max_num_batched_tokens(self) -> int:
        """Tokens of one step, by vLLM's own rule for a server (EngineArgs.get_batch_defaults)."""
        given = self.value("max_num_batched_tokens")
        if isinstance(given, int) and given > 0:
            return given
        if self._is_large:
            return 16384 if self._memory >= _LARGEST else 8192
        return 2048

    @property
    def max_num_seqs(self) -> int:
        """Requests of one step, likewise."""
        given = self.value("max_num_seqs")
        if isinstance(given, int) and given > 0:
            return given
        return 1024 if self._is_large else 256

    @property
    def _memory(self) -> int:
        smallest = self.hardware.smallest
        return smallest.memory if smallest else 0

    @property
    def _is_large(self) -> bool:
        smallest = self.hardware.smallest
        return self._memory >= _LARGE and smallest is not None and "A100" not in smallest.name

    @property
    def max_model_len(self) -> int | None:
        """The context length in force: as chosen, else the model's own; None where neither is known."""
        given = self.value("max_model_len")
        if isinstance(given, int) and given > 0:
            return given
        length = self.shape.max_length
        # a longrope model is served at the length it was first trained for, unless somebody asks for more
        if original := self.shape.original_length:
            return original
        # vLLM asks the tokenizer of embedding models alone (ModelConfig.get_and_verify_max_len)
        if self.shape.text.get("position_embedding_type") != "absolute":
            return length
        limit = self.facts.tokenizer_config.get("model_max_length")
        if length and isinstance(limit, int) and 0 < limit < length:
            return limit
        return length

    @property
    def fits_context_itself(self) -> bool:
        """Whether vLLM shortens the context to what fits (max_model_len=auto)."""
        return self.value("max_model_len") in (-1, "auto")

    @cached_property
    def weights(self) -> WeightSize:
        """Weights on each GPU."""
        quantization = self.value("quantization")
        return weights.on_each_gpu(
            self.facts,
            self.shape,
            gpus=self.gpus_per_copy * (self.data_parallel if self._spreads_experts else 1),
            quantization=str(quantization) if quantization else None,
            dtype=self.dtype,
        )

    @property
    def _spreads_experts(self) -> bool:
        return bool(self.shape.experts and self.data_parallel > 1 and self.value("enable_expert_parallel"))

    @property
    def weights_are_certain(self) -> bool:
        """Whether what the files hold comes to lie on the GPUs, as far as can be told."""
        elsewhere = any(
            self.value(name)
            for name in ("cpu_offload_gb", "offload_group_size", "hf_overrides", "language_model_only")
        )
        counted = 2 * weights.count_parameters(self.shape)
        # files that hold much more than the configuration asks for are converted or left out in part
        converted = not self.facts.quantization and counted and self.facts.weight_bytes > 1.3 * counted
        dummy = self.value("load_format") == "dummy"
        return self.weights.exact and not (elsewhere or converted or dummy or self._spreads_experts)

    @property
    def surely_loaded(self) -> int:
        """Bytes of weights that come to lie on each GPU in any case: checkpoints hold layers, for drafting
        above all, that the configuration does not count and vLLM may leave out."""
        counted = weights.counted_bytes(self.shape, self.facts.quantization, self.dtype) // self.gpus_per_copy
        return min(self.weights.bytes, counted or int(0.9 * self.weights.bytes))

    @cached_property
    def plan(self) -> CachePlan | None:
        """How the KV cache is divided; None where the model's layers or the type are not known."""
        element = self.cache_element
        if element is None or not self.shape.known or (self.shape.uncertain and not self.shape.caches):
            return None
        state = str(self.value("mamba_ssm_cache_dtype") or "auto")
        block = self.value("block_size")
        return cache_plan.plan(
            self.shape.caches,
            gpus=self.tensor_parallel,
            stages=self.pipeline_parallel,
            element=element,
            model_element=self.element,
            state_element=cache_plan.ELEMENT_BYTES.get(state),
            block_tokens=block if isinstance(block, int) and block > 0 else cache_plan.BLOCK_TOKENS,
            # two steps overlap, since scheduling is asynchronous by default
            in_flight=2 * self.max_num_batched_tokens,
            prefix_caching=self.value("enable_prefix_caching") is not False,
            hybrid=not self.value("disable_hybrid_kv_cache_manager"),
        )

    @property
    def cache_is_certain(self) -> bool:
        """Whether the plan can be relied on to the block."""
        shared = any((self.value(name) or 1) > 1 for name in _CONTEXT_PARALLEL)
        fixed = self.value("num_gpu_blocks_override")
        return self.plan is not None and not (self.shape.uncertain or shared or fixed)

    def is_on(self, variable: str) -> bool:
        """Whether a variable that vLLM reads itself is 1 or true."""
        text = self.environ.get(variable)
        return not values.is_unset(text) and str(text).strip().lower() in ("1", "true")
