"""Facts from a list of files and a way to read the small ones: the same for a folder and for the hub."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from worker_vllm.models import chat_template, weights
from worker_vllm.models.facts import ModelFacts, SourceKind

CONFIG = "config.json"
MISTRAL_CONFIG = "params.json"
SMALL_FILES = (
    CONFIG,
    MISTRAL_CONFIG,
    "generation_config.json",
    "tokenizer_config.json",
    *chat_template.FILES,
    "model.safetensors.index.json",
    "consolidated.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "hf_quant_config.json",
)
"""What `facts` and vLLM read of a repository before its weights, as far as it is there; tens of kilobytes, an
index up to a few MB."""

TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer.model",
    "tekken.json",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
    "sentencepiece.bpe.model",
)
"""Any of these is a tokenizer; one that is made by the repository's own code has other names."""

ReadText = Callable[[str], str | None]
"""Reads one of the repository's files; None where it cannot be had."""

_MAX_SMALL_BYTES = 64 * 1024**2
_MAX_DEPTH = 3
_MAX_FILES = 5000


def facts(
    name: str,
    source: SourceKind,
    files: Mapping[str, int],
    read_text: ReadText,
    *,
    load_format: str = "auto",
    **where: Any,
) -> ModelFacts:
    """The facts that `files` (name to bytes) and their contents give.

    Args:
        where: the fields of `ModelFacts` that say where it is: repository, directory, revision, commit.
    """

    def read_json(file: str) -> Mapping[str, Any]:
        return _json(read_text(file)) if file in files else {}

    tokenizer_config = read_json("tokenizer_config.json")
    return ModelFacts(
        name=name,
        source=source,
        files=files,
        config=_config(files, read_json),
        tokenizer_files=files,
        tokenizer_config=tokenizer_config,
        chat_template=chat_template.find(files, tokenizer_config, read_text, read_json),
        weights=weights.select(files, read_json, load_format),
        **where,
    )


def _config(files: Mapping[str, int], read_json: weights.ReadJson) -> Mapping[str, Any]:
    config = read_json(CONFIG) or read_json(MISTRAL_CONFIG)
    # a ModelOpt checkpoint may keep this in a file of its own
    if config and "quantization_config" not in config and "hf_quant_config.json" in files:
        return {**config, "quantization_config": read_json("hf_quant_config.json")}
    return config


def _json(text: str | None) -> Mapping[str, Any]:
    try:
        content = json.loads(text or "null")
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def folder(
    directory: Path,
    name: str | None = None,
    source: SourceKind = "path",
    *,
    load_format: str = "auto",
    **where: Any,
) -> ModelFacts:
    """The facts of a folder on this machine; nothing but the folder is looked at.

    Args:
        name: what the model was called, where that is not the folder.
        where: repository, revision and commit, where they are known.
    """
    return facts(
        name if name is not None else str(directory),
        source,
        files_of(directory),
        lambda file: read_small(directory / file),
        load_format=load_format,
        directory=directory,
        **where,
    )


def files_of(directory: Path) -> dict[str, int]:
    """Every file below `directory`, relative, to bytes. A link that leads nowhere, in a cache that lost
    the file, is no file. Hidden folders, and what lies deeper than a model's files do, are left out."""
    found: dict[str, int] = {}
    folders = [("", 0)]
    while folders and len(found) < _MAX_FILES:
        prefix, depth = folders.pop()
        try:
            entries = list(os.scandir(directory / prefix))
        except OSError:
            continue
        for entry in entries:
            name = f"{prefix}{entry.name}"
            try:
                if not entry.is_dir():
                    found[name] = entry.stat().st_size
                elif depth < _MAX_DEPTH and not entry.name.startswith("."):
                    folders.append((f"{name}/", depth + 1))
            except OSError:
                continue
    return found


def read_small(path: Path) -> str | None:
    """A file's text; None where it cannot be read, is no text, or is no small file."""
    try:
        if path.stat().st_size > _MAX_SMALL_BYTES:
            return None
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None


def has_tokenizer(model: ModelFacts) -> bool:
    """Whether there is something that a tokenizer can be made of."""
    return any(name in model.tokenizer_files for name in TOKENIZER_FILES) or any(
        name.endswith((".tiktoken", ".py")) or name.startswith("tokenizer.model.")
        for name in model.tokenizer_files
    )
