"""Model folders without weights, for benchmarks: the shape of a real model behind the demo model's tokenizer.

    python -m builder.gpu.dummy_models OUT_DIR [TOKENIZER_DIR]

vLLM fills the weights in at random (`load_format=dummy`), so that a machine without a network can measure a
model that it does not have. Speed depends on the shape alone; the text is nonsense.
"""

from __future__ import annotations

import itertools
import json
import shutil
import string
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TOKENIZER = Path("models") / "smollm2-135m-instruct"

_COMMON: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "attention_bias": False,
    "mlp_bias": False,
    # The tokenizer's own ids, whatever the shape's model had.
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}

SHAPES: dict[str, dict[str, Any]] = {
    "dummy-135m": _COMMON  # SmolLM2-135M
    | {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rope_parameters": {"rope_theta": 100000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": 49152,
    },
    "dummy-8b": _COMMON  # Llama 3.1 8B
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "max_position_embeddings": 131072,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "tie_word_embeddings": False,
        "vocab_size": 128256,
    },
}
"""Folder name to configuration."""


def build(folder: Path, config: dict[str, Any], tokenizer: Path) -> None:
    """Write one model folder, with the tokenizer of the model folder `tokenizer`."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(tokenizer / name, folder / name)
    description = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    pad_vocabulary(description["model"]["vocab"], config["vocab_size"])
    text = json.dumps(description, ensure_ascii=False, separators=(",", ":"))
    (folder / "tokenizer.json").write_text(text, encoding="utf-8")


def pad_vocabulary(vocabulary: dict[str, int], size: int) -> None:
    """Give every id below `size` a word, in place: a random model picks each as often, and each must have a
    text."""
    words = (word for word in _made_up_words() if word not in vocabulary)
    for token, word in zip(range(len(vocabulary), size), words, strict=False):
        vocabulary[word] = token


def _made_up_words() -> Iterator[str]:
    """Words of four letters, which is about what a real token has. Ġ is how a byte-level vocabulary writes a
    space."""
    for letters in itertools.product(string.ascii_lowercase, repeat=4):
        yield "Ġ" + "".join(letters)


def main(arguments: list[str]) -> int:
    """Write a folder per shape; returns the exit code."""
    if not 1 <= len(arguments) <= 2:
        print(__doc__)
        return 2
    tokenizer = Path(arguments[1]) if len(arguments) > 1 else TOKENIZER
    for name, config in SHAPES.items():
        build(Path(arguments[0]) / name, config, tokenizer)
        print(Path(arguments[0]) / name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
