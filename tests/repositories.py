"""Tiny repositories for tests: a few kilobytes each, with everything that a worker looks at."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_attention_heads": 4,
    "torch_dtype": "bfloat16",
}
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TOKENIZER = {
    "tokenizer.json": "{}",
    "tokenizer_config.json": {"chat_template": TEMPLATE, "eos_token": "</s>"},
}
SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")

Files = dict[str, Any]


def sharded(size: int = 20_000, **config: Any) -> Files:
    """A model with two shards of safetensors and much that no worker needs."""
    index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
    return {
        "config.json": {**CONFIG, **config},
        "generation_config.json": {"temperature": 0.6},
        **TOKENIZER,
        "model.safetensors.index.json": index,
        SHARDS[0]: b"a" * size,
        SHARDS[1]: b"b" * size,
        "pytorch_model.bin": b"c" * 2 * size,
        "original/consolidated.00.pth": b"d" * size,
        "onnx/model.onnx": b"e" * size,
        "README.md": "# a model",
        "LICENSE": "do as you like",
        ".gitattributes": "*.safetensors lfs",
        "figure.png": b"f" * size,
    }


NEEDED = {
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors.index.json",
    *SHARDS,
    "LICENSE",
}
"""What a worker needs of `sharded`."""


def adapter(rank: int = 8, base: str = "org/model") -> Files:
    """A LoRA adapter."""
    return {
        "adapter_config.json": {"r": rank, "base_model_name_or_path": base},
        "adapter_model.safetensors": b"g" * 1000,
        "README.md": "# an adapter",
    }


def write(directory: Path, files: Mapping[str, Any]) -> Path:
    """Write a repository's files to a folder; returns it."""
    for name, data in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data if isinstance(data, bytes) else _text(data).encode())
    return directory


def _text(data: Any) -> str:
    return data if isinstance(data, str) else json.dumps(data)


def cached(
    cache: Path,
    repository: str,
    files: Mapping[str, Any],
    commit: str = "c" * 40,
    *,
    ref: str | None = "main",
    lower: bool = False,
) -> Path:
    """Lay `files` out as one commit of a repository in a hub cache; returns the snapshot's folder.

    Args:
        ref: the branch that leads to the commit; None for a cache without.
        lower: the folder's name in lower case, as in RunPod's model cache.
    """
    name = "--".join(("models", *repository.split("/")))
    root = cache / (name.lower() if lower else name)
    if ref:
        (root / "refs").mkdir(parents=True, exist_ok=True)
        (root / "refs" / ref).write_text(commit)
    return write(root / "snapshots" / commit, files)
