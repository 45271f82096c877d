"""The demo model's conversion: a GGUF file to a bfloat16 safetensors folder that vLLM serves.

Run by the set-up as `python -m builder.demo_model GGUF FOLDER` with the environment's Python, and with gguf
and accelerate on the path for as long as it runs.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

NAME = "smollm2-135m-instruct"
RECIPE = 1  # raise it when the folder's content changes, and every machine converts again
CONTEXT = 8192


def convert(gguf: Path, folder: Path) -> None:
    """Write the model of `gguf`, its tokenizer and its chat template into the existing `folder`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(**source)
    # GGUF has no such field, and without it tokenizers do not know where the model's context ends.
    tokenizer.model_max_length = CONTEXT
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(
        **source, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
    )
    model.save_pretrained(folder)
    _drop(folder / "config.json", "_model_name_or_path")
    # Where these came from is a cache on the machine that converted, of no meaning to who loads the folder.
    _drop(folder / "tokenizer_config.json", "is_local", "local_files_only")
    for path in folder.iterdir():
        path.chmod(0o644)  # safetensors writes for its owner alone


def _drop(path: Path, *keys: str) -> None:
    content = json.loads(path.read_text())
    kept = {key: value for key, value in content.items() if key not in keys}
    path.write_text(json.dumps(kept, indent=2) + "\n")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
