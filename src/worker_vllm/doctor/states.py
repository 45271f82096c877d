"""What recurrent layers keep per request: a state of fixed size, whatever the length of the text.

The shapes are those of vLLM's MambaStateShapeCalculator (model_executor/layers/mamba/mamba_utils.py), the
names those of each family's configuration.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Config = Mapping[str, Any]


@dataclass(frozen=True)
class StateSize:
    """What a recurrent layer (Mamba, linear attention, short convolution) keeps per request.

    Attributes:
        kernel: width of the convolution. inner: its channels that are divided among the GPUs.
        groups, group_width: further channels, by groups that are repeated where the GPUs do not divide them.
        recurrent: elements of the recurrent state. dtype: its data type; None for the model's.
    """

    kernel: int
    inner: int
    groups: int = 0
    group_width: int = 0
    recurrent: int = 0
    dtype: str | None = None

    def bytes(self, gpus: int, element: int, recurrent_element: int) -> int:
        """Bytes per layer and GPU (vllm MambaStateShapeCalculator)."""
        groups = self.groups + (gpus - self.groups if self.groups % gpus else 0)
        channels = (self.inner + 2 * groups * self.group_width) // gpus
        return (self.kernel - 1) * channels * element + self.recurrent // gpus * recurrent_element


def state_size(text: Config, family: str) -> StateSize | None:
    """The state of the family's recurrent layers; None where it is not known here."""
    try:
        found = _STATES[family](text)
    except (KeyError, TypeError):
        return None
    numbers = (found.kernel, found.inner, found.groups, found.group_width, found.recurrent)
    return found if all(isinstance(number, int) for number in numbers) else None


def _mamba1(text: Config) -> StateSize:
    inner = text.get("mamba_expand", 2) * text["hidden_size"]
    return StateSize(text.get("mamba_d_conv", 4), inner, recurrent=inner * text.get("mamba_d_state", 16))


def _mamba1_alone(text: Config) -> StateSize:
    inner = text.get("intermediate_size") or text.get("expand", 2) * text["hidden_size"]
    return StateSize(text.get("conv_kernel", 4), inner, recurrent=inner * text.get("state_size", 16))


def _mamba2(inner: int, heads: int, dim: int, state: int, groups: int, kernel: int, dtype: Any) -> StateSize:
    kept = dtype if isinstance(dtype, str) else None
    return StateSize(kernel, inner, groups, state, recurrent=heads * dim * state, dtype=kept)


def _nemotron_state(text: Config) -> StateSize:
    heads, dim = text["mamba_num_heads"], text["mamba_head_dim"]
    groups, dtype = text["n_groups"], text.get("mamba_ssm_cache_dtype")
    return _mamba2(heads * dim, heads, dim, text["ssm_state_size"], groups, text["conv_kernel"], dtype)


def _mamba2_alone(text: Config) -> StateSize:
    inner = text.get("expand", 2) * text["hidden_size"]
    heads, dim, state = text["num_heads"], text["head_dim"], text["state_size"]
    return _mamba2(inner, heads, dim, state, text["n_groups"], text["conv_kernel"], None)


def _granite(text: Config) -> StateSize:
    inner = text.get("mamba_d_ssm") or text["mamba_expand"] * text["hidden_size"]
    heads, dim, state = text["mamba_n_heads"], text["mamba_d_head"], text["mamba_d_state"]
    if not isinstance(dim, int):
        dim = inner // heads
    return _mamba2(inner, heads, dim, state, text["mamba_n_groups"], text["mamba_d_conv"], None)


def _delta_net(text: Config) -> StateSize:
    keys, values = text["linear_num_key_heads"], text["linear_num_value_heads"]
    key_dim, value_dim = text["linear_key_head_dim"], text["linear_value_head_dim"]
    inner = 2 * keys * key_dim + values * value_dim
    recurrent = values * value_dim * key_dim
    dtype = text.get("mamba_ssm_dtype")
    return StateSize(text["linear_conv_kernel_dim"], inner, recurrent=recurrent, dtype=dtype)


def _kimi_state(text: Config) -> StateSize:
    linear = text["linear_attn_config"]
    heads, dim = linear["num_heads"], linear["head_dim"]
    inner, kernel = 3 * heads * dim, linear.get("short_conv_kernel_size", 4)
    return StateSize(kernel, inner, recurrent=heads * dim * dim, dtype="float32")


def _short_convolution(text: Config) -> StateSize:
    return StateSize(text["conv_L_cache"], text.get("conv_dim") or text["hidden_size"])


_STATES = {
    "jamba": _mamba1,
    "mamba": _mamba1_alone,
    "falcon_mamba": _mamba1_alone,
    "mamba2": _mamba2_alone,
    "nemotron_h": _nemotron_state,
    "granitemoehybrid": _granite,
    "bamba": _granite,
    "falcon_h1": _granite,
    "qwen3_next": _delta_net,
    "qwen3_5_text": _delta_net,
    "qwen3_5_moe_text": _delta_net,
    "kimi_linear": _kimi_state,
    "lfm2": _short_convolution,
    "lfm2_moe": _short_convolution,
}
