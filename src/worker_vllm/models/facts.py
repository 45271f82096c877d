"""What is known of a model before a weight is loaded: a frozen record for worker start, bake and doctor.

It is made from a folder without any network (`describe.folder`), or from the hub's list of files and the
small JSON files alone (`Hub.facts`); `models.look` chooses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from worker_vllm.models import chat_template

SourceKind = Literal["path", "baked", "cache", "hub", "remote"]
"""Where a name led: a local folder or file, the image's own model, a snapshot in a hub cache on disk, the
hub, or an object store that vLLM reads itself (nothing but the name is known then)."""

WeightFormat = Literal["safetensors", "mistral", "bin", "pt", "gguf"]
"""How the weights that vLLM will load are stored; mistral is consolidated*.safetensors."""


@dataclass(frozen=True)
class Weights:
    """The weight files that vLLM will load, out of all that a repository has.

    Attributes:
        format: None where there are no weights.
        files: name relative to the folder, to bytes. Files that are missing are not in it.
        missing: shards that the index names, and that are not there.
        index: the index file, where there is one.
    """

    format: WeightFormat | None = None
    files: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    index: str | None = None

    @property
    def bytes(self) -> int:
        """Bytes of all files, as stored."""
        return sum(self.files.values())

    @property
    def complete(self) -> bool:
        """Whether there are weights and every shard of the index is there."""
        return bool(self.files) and not self.missing


@dataclass(frozen=True)
class AdapterFacts:
    """A LoRA adapter.

    Attributes:
        name: what requests call it; the repository or path where it has no other name.
        path: the repository or path it was given as.
        base: the model that its adapter_config.json says it was trained on.
        rank: its largest rank (`r`, or a larger one in `rank_pattern`).
        bytes: of its weight files; None where the sizes are not known.
        problem: why it could not be looked at, in one sentence.
    """

    name: str
    path: str
    base: str | None = None
    rank: int | None = None
    bytes: int | None = None
    problem: str | None = None


@dataclass(frozen=True)
class ModelFacts:
    """A model, as far as its name leads to it.

    Attributes:
        name: as it was given (MODEL_NAME).
        source: where the name led.
        repository: the hub's id; None for a plain folder.
        directory: the folder with its files; None where they are not on this machine (hub, remote), or where
            the model is a single file (then `file` is set).
        file: a model that is one file (GGUF).
        revision: as it was asked for; None for the default branch.
        commit: the commit that the files are of, where known.
        files: every file of the folder or repository, relative, to bytes.
        config: config.json, or params.json for a model in Mistral's format; empty where there is neither.
        tokenizer: the repository or path of the tokenizer where it is another one; None for the model's own.
        tokenizer_files: the files beside the tokenizer, relative, to bytes.
        tokenizer_config: tokenizer_config.json.
        chat_template: the default chat template's text; None where there is none.
        weights: what vLLM will load.
        adapters: the LoRA adapters asked for.
    """

    name: str
    source: SourceKind
    repository: str | None = None
    directory: Path | None = None
    file: Path | None = None
    revision: str | None = None
    commit: str | None = None
    files: Mapping[str, int] = field(default_factory=dict, repr=False)
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    tokenizer: str | None = None
    tokenizer_files: Mapping[str, int] = field(default_factory=dict, repr=False)
    tokenizer_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    chat_template: str | None = field(default=None, repr=False)
    weights: Weights = field(default_factory=Weights, repr=False)
    adapters: tuple[AdapterFacts, ...] = ()

    @property
    def auto_map(self) -> Mapping[str, Any]:
        """The repository's own Python classes, by what they stand in for; empty where it brings none."""
        found = self.config.get("auto_map")
        return found if isinstance(found, dict) else {}

    @property
    def elsewhere(self) -> tuple[str, ...]:
        """Other repositories whose files vLLM reads for this model, because its config.json names them: parts
        of a model made of several (text_model_id, …), the model that a drafter is for."""
        parts = (name for key, name in self.config.items() if key.endswith("_model_id"))
        drafter = self.config.get("speculators_config")
        verifier = drafter.get("verifier") if isinstance(drafter, dict) else None
        target = verifier.get("name_or_path") if isinstance(verifier, dict) else None
        found = (name for name in (*parts, target) if isinstance(name, str) and name)
        return tuple(dict.fromkeys(found))

    @property
    def code_elsewhere(self) -> tuple[str, ...]:
        """Other repositories that auto_map takes classes from; a model that was fine-tuned often names its
        base there, though vLLM has the class itself."""
        names = (str(name) for name in self.auto_map.values())
        return tuple(dict.fromkeys(name.split("--")[0] for name in names if "--" in name))

    @property
    def quantization(self) -> str | None:
        """The method that the checkpoint was quantized with, by config.json (`fp8`, `awq`, `gptq`, `mxfp4`,
        `compressed-tensors`, …); None for plain weights."""
        return _method(self.quantization_config)

    @property
    def quantization_config(self) -> Mapping[str, Any]:
        """config.json's quantization_config, of the text model in a larger one; or compression_config."""
        text = self.config.get("text_config")
        for config in (self.config, text if isinstance(text, dict) else {}):
            for key in ("quantization_config", "compression_config"):
                found = config.get(key)
                if isinstance(found, dict):
                    return found
        return {}

    @property
    def weight_bytes(self) -> int:
        """Bytes of the weight files that vLLM will load, as stored."""
        return self.weights.bytes

    @cached_property
    def chat_template_problem(self) -> str | None:
        """Why the chat template cannot be parsed, in one line; None where it can, or where there is none."""
        return None if self.chat_template is None else chat_template.problem(self.chat_template)


def _method(quantization: Mapping[str, Any]) -> str | None:
    method = quantization.get("quant_method")
    if isinstance(method, str):
        return method.lower()
    # ModelOpt's own form names the producer
    producer = quantization.get("producer")
    if isinstance(producer, dict) and producer.get("name") == "modelopt":
        return "modelopt"
    return None
