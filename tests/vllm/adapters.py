"""A LoRA adapter made on the spot: random weights that change what the model says."""

from __future__ import annotations

import json
from pathlib import Path

RANK = 4
SCALE = 64  # far more than real adapters have: the answer must differ


def make(model: Path, folder: Path) -> Path:
    """Write an adapter for the model in `model` into `folder`; returns `folder`."""
    import torch
    from safetensors.torch import save_file

    config = json.loads((model / "config.json").read_text())
    hidden, wide = config["hidden_size"], config["head_dim"] * config["num_attention_heads"]
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for layer in range(config["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{layer}.self_attn.q_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, hidden, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(wide, RANK, generator=generator)
        name = f"base_model.model.model.layers.{layer}.self_attn.o_proj"
        weights[f"{name}.lora_A.weight"] = torch.randn(RANK, wide, generator=generator)
        weights[f"{name}.lora_B.weight"] = torch.randn(hidden, RANK, generator=generator)
    save_file(weights, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": SCALE,
        "bias": "none",
        "target_modules": ["q_proj", "o_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder
