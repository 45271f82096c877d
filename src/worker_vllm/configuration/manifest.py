"""A baked model: what the image's /local_model_args.json says of the weights inside it.

Images in use have MODEL_NAME (a snapshot's path), TOKENIZER_NAME (a path), QUANTIZATION, MODEL_REVISION and
TOKENIZER_REVISION there. Ours are MODEL_REPO, the repository's id, LORA_MODULES, and BAKED, a list of all
that was baked: role, repository, revision, path, files and bytes of each.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker_vllm import values
from worker_vllm.configuration.given import Given
from worker_vllm.configuration.report import Report

NAME = "local_model_args.json"

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""What keeps the hub libraries from asking the network about files that are in the image."""

_CACHE_FOLDER = re.compile(r"models--(?P<owner>.+?)--(?P<name>[^/]+)")
_ARGUMENTS = {
    "tokenizer": "TOKENIZER_NAME",
    "quantization": "QUANTIZATION",
    "revision": "MODEL_REVISION",
    "tokenizer_revision": "TOKENIZER_REVISION",
    "lora_modules": "LORA_MODULES",
}


@dataclass(frozen=True)
class Manifest:
    """The baked model.

    Attributes:
        path: where its weights are.
        repository: the hub's id of it, where known.
        arguments: what else the manifest sets, by argument.
        others: where tokenizers, adapters and drafters are, by repository in lower case.
    """

    path: str
    repository: str | None
    arguments: Mapping[str, str]
    others: Mapping[str, str] = field(default_factory=dict)

    def is_model(self, name: str) -> bool:
        """Whether `name` means this model: its path, or its repository in any case (caches lower it)."""
        return name.rstrip("/") == self.path.rstrip("/") or (
            self.repository is not None and name.lower() == self.repository.lower()
        )


def read(root: Path, report: Report) -> Manifest | None:
    """The image's manifest; None if the image has no model in it."""
    path = root / NAME
    try:
        if not path.is_file():
            return None
        content: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict) or not isinstance(content.get("MODEL_NAME"), str):
        report.problem(f"{path}: not a baked model's manifest; bake the image again")
        return None
    found = {
        key: text for key, text in content.items() if isinstance(text, str) and not values.is_unset(text)
    }
    model = found.get("MODEL_NAME", "")
    return Manifest(
        path=model,
        repository=found.get("MODEL_REPO") or repository_of(model),
        arguments={name: found[key] for name, key in _ARGUMENTS.items() if key in found},
        others=_others(content.get("BAKED")),
    )


def _others(baked: Any) -> dict[str, str]:
    return {
        entry["repository"].lower(): entry["path"]
        for entry in (baked if isinstance(baked, list) else ())
        if isinstance(entry, dict)
        and entry.get("role") != "model"
        and isinstance(entry.get("repository"), str)
        and isinstance(entry.get("path"), str)
    }


def repository_of(path: str) -> str | None:
    """The hub's id of a model whose files lie at `path` inside a hub cache; None for any other path."""
    match = _CACHE_FOLDER.search(path)
    return f"{match['owner']}/{match['name']}" if match else None


def apply(manifest: Manifest | None, given: dict[str, Given], report: Report) -> bool:
    """Put the baked model into `given`, if that names the same model or none. Returns whether it did."""
    if manifest is None:
        return False
    wanted = given.get("model")
    if wanted is not None and not manifest.is_model(str(wanted.raw).strip()):
        report.warn(
            f"{wanted.variable}={values.shown(wanted.raw)} is used, not the model in the image "
            f"({manifest.repository or manifest.path})"
        )
        return False
    if not Path(manifest.path).exists():
        why = f"the model in the image is not at {manifest.path}; is a volume mounted over it?"
        if wanted is None or wanted.raw == manifest.path:
            report.problem(f"{NAME}: {why} Bake it to another folder, or set MODEL_NAME to download it")
        else:
            report.warn(f"{why} Using {wanted.variable} instead")
        return False
    given["model"] = Given(manifest.path, "baked", NAME)
    for name, text in manifest.arguments.items():
        if name.endswith("revision"):
            # the files on disk are of this revision, whatever was asked for
            given[name] = Given(text, "baked", NAME)
        else:
            given.setdefault(name, Given(text, "baked", NAME))
    return True
