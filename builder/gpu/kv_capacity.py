"""The doctor's figure for the KV cache against the engine's own, for models without weights.

    python -m builder.gpu.kv_capacity OUT_DIR [--shape NAME]... [--tokenizer DIR] [--graphs]
        [--cache-bytes N] [--max-model-len N]

Run it where there is a GPU and vLLM is on PYTHONPATH (`src` too); each engine takes about 40 s. For every
shape a folder is written to OUT_DIR, an engine is started on it in a process of its own with
`load_format=dummy`, and a line of JSON is printed with what was predicted and what vLLM found. The exit code
is 1 where they differ by more than 5 per cent. `--cache-bytes` sets the cache's size, so that only the
division into blocks is compared; that runs on a CPU too.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from builder.gpu import dummy_models
from worker_vllm import doctor
from worker_vllm.models import describe
from worker_vllm.settings import Effective

TOLERANCE = 0.05
SECONDS = 420
# `vllm serve` has these on a large card; the class LLM has others
BATCH = {"max_num_batched_tokens": 8192, "max_num_seqs": 1024}

_WORDS: dict[str, Any] = {"dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}

SHAPES: dict[str, dict[str, Any]] = {
    "dummy-8b": dummy_models.SHAPES["dummy-8b"],
    "dummy-gemma3-12b": _WORDS  # Gemma 3 12B's language model: five layers of six see 1024 tokens
    | {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_size": 3840,
        "intermediate_size": 15360,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "query_pre_attn_scalar": 256,
        "sliding_window": 1024,
        "tie_word_embeddings": True,
        "vocab_size": 128256,
    },
    "dummy-deepseek-v2-lite": _WORDS  # a latent for keys and values, and 64 experts
    | {
        "architectures": ["DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v2",
        "first_k_dense_replace": 1,
        "hidden_size": 2048,
        "intermediate_size": 10944,
        "kv_lora_rank": 512,
        "max_position_embeddings": 32768,
        "moe_intermediate_size": 1408,
        "moe_layer_freq": 1,
        "n_group": 1,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "norm_topk_prob": False,
        "num_attention_heads": 16,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 27,
        "num_key_value_heads": 16,
        "q_lora_rank": None,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "routed_scaling_factor": 1.0,
        "scoring_func": "softmax",
        "tie_word_embeddings": False,
        "topk_group": 1,
        "topk_method": "greedy",
        "v_head_dim": 128,
        "vocab_size": 102400,
    },
}
"""Compared unless `--shape` chooses."""

MORE: dict[str, dict[str, Any]] = {
    "dummy-135m": dummy_models.SHAPES["dummy-135m"],
    "dummy-qwen2-7b": _WORDS
    | {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "max_position_embeddings": 32768,
        "use_sliding_window": False,
        "tie_word_embeddings": False,
        "vocab_size": 152064,
    },
}

_ENGINE = """
import json, sys
from vllm import LLM
if __name__ == "__main__":
    cache = LLM(**json.loads(sys.argv[1])).llm_engine.vllm_config.cache_config
    print("FOUND", json.dumps({"blocks": cache.num_gpu_blocks, "block_tokens": cache.block_size}), flush=True)
"""


def options(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What the engine is started with."""
    chosen = {"model": str(folder), "load_format": "dummy", "enforce_eager": not args.graphs, **BATCH}
    if args.cache_bytes:
        chosen["kv_cache_memory_bytes"] = args.cache_bytes
    if args.max_model_len:
        chosen["max_model_len"] = args.max_model_len
    return chosen


def predict(folder: Path, chosen: dict[str, Any]) -> dict[str, Any]:
    """The doctor's figures, and how long it took."""
    begun = time.perf_counter()
    # vLLM's defaults, so that vLLM need not be asked for them
    defaults = {"gpu_memory_utilization": 0.92, "dtype": "auto", "tensor_parallel_size": 1}
    case = doctor.Case(
        describe.folder(folder),
        {name: Effective(value, "environment") for name, value in {**defaults, **chosen}.items()},
        doctor.this_machine(os.environ),
        os.environ,
    )
    memory = doctor.examine(case).as_data()["memory"] or {}
    plan, length = case.plan, case.max_model_len
    if plan is not None and length and (fixed := chosen.get("kv_cache_memory_bytes")):
        memory |= {
            "kv_cache": fixed,
            "blocks": fixed // plan.bytes_per_block,
            "block_tokens": plan.block_tokens,
            "tokens": plan.tokens(fixed, length),
        }
    return memory | {"seconds": round(time.perf_counter() - begun, 3)}


def measure(chosen: dict[str, Any]) -> dict[str, Any]:
    """vLLM's figures: those of its configuration, and those of its log."""
    environ = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    ended = subprocess.run(
        [sys.executable, "-c", _ENGINE, json.dumps(chosen)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    log = ended.stdout
    found: dict[str, Any] = {}
    if line := re.search(r"^FOUND (\{.*\})$", log, re.MULTILINE):
        found = json.loads(line[1])
    if tokens := re.search(r"KV cache size: ([\d,]+) tokens", log):
        found["tokens"] = int(tokens[1].replace(",", ""))
    if memory := re.search(r"Available KV cache memory: (-?[\d.]+) GiB", log):
        found["kv_cache"] = int(float(memory[1]) * 2**30)
    if weights := re.search(r"Model loading took (-?[\d.]+) GiB", log):
        found["weights"] = int(float(weights[1]) * 2**30)
    return found or {"failed": log.splitlines()[-15:]}


def compare(predicted: dict[str, Any], found: dict[str, Any]) -> dict[str, float]:
    """Predicted by found, for each figure that both have. `slots` is blocks times their tokens: the cache's
    size whatever the block's, and whatever a version's log counts as tokens."""
    for figures in (predicted, found):
        if figures.get("blocks"):
            figures["slots"] = figures["blocks"] * figures["block_tokens"]
    return {
        name: round(predicted[name] / found[name], 4)
        for name in ("weights", "kv_cache", "slots", "tokens")
        if predicted.get(name) and found.get(name)
    }


def main(arguments: list[str]) -> int:
    """Compare every shape; returns the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", action="append", choices=[*SHAPES, *MORE])
    parser.add_argument("--tokenizer", type=Path, default=dummy_models.TOKENIZER)
    parser.add_argument("--graphs", action="store_true", help="capture CUDA graphs, too")
    parser.add_argument("--cache-bytes", type=int)
    parser.add_argument("--max-model-len", type=int)
    args = parser.parse_args(arguments)
    close = True
    for name in args.shape or SHAPES:
        folder = args.out / name
        dummy_models.build(folder, {**SHAPES, **MORE}[name], args.tokenizer)
        chosen = options(folder, args)
        predicted, found = predict(folder, chosen), measure(chosen)
        ratios = compare(predicted, found)
        close &= abs(ratios.get("slots", 0.0) - 1) <= TOLERANCE
        shown = {"shape": name, "predicted": predicted, "found": found, "predicted_by_found": ratios}
        print(json.dumps(shown), flush=True)
    return 0 if close else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
