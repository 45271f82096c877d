"""The tests' tiny model: two random Llama layers behind the demo model's tokenizer.

It answers nonsense, but it starts fast, holds about 1 MB and speaks the same chat template, so a test
that asks how an answer travels, not what it says, need not wait for the demo model.

The weights are drawn and written with the standard library alone: the file is then the same with every
version of PyTorch, and takes half a second instead of PyTorch's import time.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

NAME = "tiny-random"
SEED = 20
RECIPE = 1  # raise it when the folder's content changes
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")

VOCABULARY = 49152  # SmolLM2's tokenizer
HIDDEN = 8
HEADS = 2
HEAD_DIMENSION = 32  # the smallest that vLLM's CPU attention takes
INTERMEDIATE = 32
LAYERS = 2
CONTEXT = 2048
DEVIATION = 0.5  # of the weights: with less, the last token alone decides the next

Tensor = tuple[tuple[int, ...], bytes]  # the shape, and the values as bfloat16

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 1,
    "head_dim": HEAD_DIMENSION,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
}
GENERATION = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}


def build(folder: Path, tokenizer: Path) -> None:
    """Write the model into the existing `folder`, with the tokenizer of the model folder `tokenizer`."""
    for name in TOKENIZER_FILES:
        shutil.copyfile(tokenizer / name, folder / name)
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2) + "\n")
    (folder / "generation_config.json").write_text(json.dumps(GENERATION, indent=2) + "\n")
    write_safetensors(folder / "model.safetensors", dict(_tensors(random.Random(SEED))))


def write_safetensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write the tensors as one safetensors file."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    position = 0
    for name, (shape, data) in tensors.items():
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # the format wants the data to start at a multiple of eight
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(data for _, data in tensors.values())


def _tensors(source: random.Random) -> Iterator[tuple[str, Tensor]]:
    def drawn(name: str, rows: int, columns: int) -> tuple[str, Tensor]:
        values = array("f", (source.gauss(0.0, DEVIATION) for _ in range(rows * columns)))
        return name, ((rows, columns), _bfloat16(values))

    def ones(name: str) -> tuple[str, Tensor]:
        return name, ((HIDDEN,), _bfloat16(array("f", [1.0] * HIDDEN)))

    yield drawn("model.embed_tokens.weight", VOCABULARY, HIDDEN)
    for number in range(LAYERS):
        layer = f"model.layers.{number}"
        yield ones(f"{layer}.input_layernorm.weight")
        yield drawn(f"{layer}.self_attn.q_proj.weight", HEADS * HEAD_DIMENSION, HIDDEN)
        yield drawn(f"{layer}.self_attn.k_proj.weight", HEAD_DIMENSION, HIDDEN)
        yield drawn(f"{layer}.self_attn.v_proj.weight", HEAD_DIMENSION, HIDDEN)
        yield drawn(f"{layer}.self_attn.o_proj.weight", HIDDEN, HEADS * HEAD_DIMENSION)
        yield ones(f"{layer}.post_attention_layernorm.weight")
        yield drawn(f"{layer}.mlp.gate_proj.weight", INTERMEDIATE, HIDDEN)
        yield drawn(f"{layer}.mlp.up_proj.weight", INTERMEDIATE, HIDDEN)
        yield drawn(f"{layer}.mlp.down_proj.weight", HIDDEN, INTERMEDIATE)
    yield ones("model.norm.weight")


def _bfloat16(values: array[float]) -> bytes:
    """The upper half of each float32: bfloat16, rounded towards zero."""
    wide = values.tobytes()
    narrow = bytearray(2 * len(values))
    narrow[0::2] = wide[2::4]
    narrow[1::2] = wide[3::4]
    return bytes(narrow)
