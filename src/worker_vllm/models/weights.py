"""Which of a repository's files vLLM will load: one format of weights, and what goes with it.

The order is that of vLLM's default loader (model_executor/model_loader/default_loader.py, the same in 0.26 to
0.33): Mistral's consolidated files where there are any, then safetensors, then .bin, then .pt, each in the
folder itself; an index decides between the files of a format. GGUF comes last, for vLLM's plugin.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatch
from pathlib import PurePosixPath
from typing import Any

from worker_vllm.models.facts import WeightFormat, Weights

ReadJson = Callable[[str], Mapping[str, Any]]
"""Reads one of the repository's JSON files; an empty mapping where it cannot be had."""

_PATTERNS: dict[WeightFormat, str] = {
    "mistral": "consolidated*.safetensors",
    "safetensors": "*.safetensors",
    "bin": "*.bin",
    "pt": "*.pt",
    "gguf": "*.gguf",
}
_INDEXES: dict[WeightFormat, str] = {
    "mistral": "consolidated.safetensors.index.json",
    "safetensors": "model.safetensors.index.json",
    "bin": "pytorch_model.bin.index.json",
}
_ORDER: dict[str, tuple[WeightFormat, ...]] = {
    "auto": ("mistral", "safetensors", "bin", "pt", "gguf"),
    "hf": ("safetensors", "bin", "pt"),
    "safetensors": ("safetensors",),
    "fastsafetensors": ("safetensors",),
    "instanttensor": ("safetensors",),
    "runai_streamer": ("safetensors",),
    "mistral": ("mistral",),
    "npcache": ("bin", "pt"),
    "pt": ("pt",),
    "gguf": ("gguf",),
}
KNOWN_LOAD_FORMATS = frozenset(_ORDER)
"""The values of LOAD_FORMAT for which it is known what is loaded; the others read something else, or nothing
(dummy)."""

# what a training run leaves beside the weights
_TRAINING = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<suffix>\.\w+)")

# modules of sentence-transformers, with the projections that vLLM loads for embeddings
_MODULE_FOLDER = re.compile(r"\d+_\w+")
_MODULE_WEIGHTS = ("model.safetensors", "pytorch_model.bin")

_NEVER_FOLDERS = {"original", "onnx", "openvino", "coreml", "metal", "gguf", "tf", "flax", "tensorrt"}
_OTHER_WEIGHTS = (
    ".safetensors", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".onnx_data", ".ot",
    ".tflite", ".mlmodel", ".ckpt", ".npz", ".pkl", ".nemo", ".engine", ".plan", ".llamafile",
)  # fmt: skip
_ARCHIVES = (".tar", ".gz", ".zip", ".7z", ".xz", ".parquet", ".csv")
_TO_LOOK_AT = (
    ".md", ".html", ".pdf", ".ipynb", ".png", ".jpg", ".jpeg", ".gif", ".webp", ".svg", ".ico", ".mp4",
    ".mov", ".avi", ".webm", ".wav", ".mp3", ".flac", ".ogg",
)  # fmt: skip
_NEVER_SUFFIXES = frozenset((*_OTHER_WEIGHTS, *_ARCHIVES, *_TO_LOOK_AT))
_LICENCES = ("license", "licence", "notice", "copying")


def select(files: Mapping[str, int], read_json: ReadJson, load_format: str = "auto") -> Weights:
    """The weights among `files` (name to bytes) that vLLM will load."""
    for kind in _ORDER.get(load_format, _ORDER["auto"]):
        found = {
            name: size
            for name, size in files.items()
            if "/" not in name and fnmatch(name, _PATTERNS[kind]) and not name.endswith(_TRAINING)
        }
        index = _INDEXES.get(kind)
        if index is not None and index not in files:
            index = None
        named = _named_by(read_json(index)) if index else ()
        if not found and not named:
            continue
        if named and kind != "bin":  # vLLM goes by the index for safetensors alone
            found = {name: size for name, size in found.items() if name in named}
        missing = tuple(sorted({*named, *_series(found)} - files.keys()))
        return Weights(kind, found, missing, index)
    return Weights()


def _named_by(index: Mapping[str, Any]) -> frozenset[str]:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict):
        return frozenset()
    return frozenset(name for name in weight_map.values() if isinstance(name, str))


def _series(names: Iterable[str]) -> frozenset[str]:
    """Every shard of the series that `names` belong to: model-00001-of-00002 says that there is a second."""
    series: set[str] = set()
    for name in names:
        if (shard := _SHARD.fullmatch(name)) and name not in series:
            stem, suffix, count = shard["stem"], shard["suffix"], int(shard["count"])
            series |= {f"{stem}-{number:05}-of-{count:05}{suffix}" for number in range(1, count + 1)}
    return frozenset(series)


def wanted(files: Iterable[str], weights: Weights) -> tuple[str, ...]:
    """The files that a worker needs of a repository: `weights`, and all that is no weights of another format,
    nothing to look at, and nothing for another runtime. A licence goes with the files it covers."""
    names = tuple(files)
    chosen = {*weights.files, *weights.missing, *_modules(names)}
    return tuple(sorted(name for name in names if name in chosen or _goes_along(name, weights)))


def _goes_along(name: str, weights: Weights) -> bool:
    path = PurePosixPath(name)
    if any(part.startswith(".") for part in path.parts) or _NEVER_FOLDERS & set(path.parts[:-1]):
        return False
    if path.name.lower().startswith(_LICENCES):
        return True
    if name.endswith(".index.json"):
        return name == weights.index
    return path.suffix.lower() not in _NEVER_SUFFIXES


def _modules(names: tuple[str, ...]) -> set[str]:
    present = set(names)
    found: set[str] = set()
    for folder in {name.partition("/")[0] for name in names if name.count("/") == 1}:
        if _MODULE_FOLDER.fullmatch(folder):
            found |= {next((path for w in _MODULE_WEIGHTS if (path := f"{folder}/{w}") in present), "")}
    return found - {""}
