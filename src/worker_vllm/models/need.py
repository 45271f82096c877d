"""What of a model must be there for vLLM to start with it, and whether a folder has it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from worker_vllm.models import describe, weights
from worker_vllm.models.facts import ModelFacts, Weights
from worker_vllm.models.wanted import Part

ADAPTER_CONFIG = "adapter_config.json"
"""What makes a folder a LoRA adapter."""

_POINTER_BYTES = 1024  # git-lfs keeps them below this


@dataclass(frozen=True)
class Need:
    """What is needed under a configuration.

    Attributes:
        load_format: LOAD_FORMAT.
        tokenizer: whether a model is whole only with its tokenizer.
    """

    load_format: str = "auto"
    tokenizer: bool = True

    def reads_weights(self, part: Part) -> bool:
        """Whether weights are read for `part` at all."""
        return part.role != "tokenizer" and not (part.role == "model" and self.load_format == "dummy")

    def weights_of(self, part: Part, facts: ModelFacts) -> Weights:
        """The weights that are read for `part`; none where there are none to read."""
        return facts.weights if self.reads_weights(part) else Weights()

    def is_usable(self, part: Part, facts: ModelFacts) -> bool:
        """Whether vLLM can start with the folder, though something may be missing."""
        if part.role == "tokenizer":
            return describe.has_tokenizer(facts)
        if part.role == "adapter":
            return ADAPTER_CONFIG in facts.files and facts.weights.complete
        has_config = bool(facts.config) or facts.weights.format == "gguf"
        known = self.load_format in weights.KNOWN_LOAD_FORMATS
        return has_config and (facts.weights.complete or not (known and self.reads_weights(part)))

    def is_whole(self, part: Part, facts: ModelFacts, listed: Mapping[str, int] | None) -> bool:
        """Whether nothing that a worker needs is missing, as far as it can be told.

        Args:
            listed: what the hub said that the repository has, name to bytes; None where that is not known.
        """
        if not self.is_usable(part, facts):
            return False
        if part.role == "model" and self.tokenizer and not describe.has_tokenizer(facts):
            return False
        if listed is None or facts.weights.format == "gguf":
            return True
        reads = self.weights_of(part, facts)
        own_code = "auto_map" in facts.config
        return all(
            facts.files.get(name) == listed[name]
            for name in weights.wanted(listed, reads)
            if name in reads.files or name in describe.SMALL_FILES or (own_code and name.endswith(".py"))
        )

    def _pointers(self, part: Part, facts: ModelFacts) -> list[str]:
        """The files of a folder that are Git LFS's pointers, as clones without it have them."""
        names = (*self.weights_of(part, facts).files, *describe.TOKENIZER_FILES)
        small = (name for name in names if 0 < facts.files.get(name, 0) < _POINTER_BYTES)
        return [
            name
            for name in small
            if facts.directory
            and (describe.read_small(facts.directory / name) or "").startswith("version https://git-lfs")
        ]

    def lacks(self, part: Part, facts: ModelFacts) -> str | None:
        """What a folder that somebody named lacks, in words; None where nothing is."""
        if part.role in ("model", "speculator") and not facts.config and facts.weights.format != "gguf":
            is_cache = any(name.startswith(("refs/", "blobs/")) for name in facts.files)
            hint = "; it is a cache's folder: give the repository's name" if is_cache else ""
            return f"the folder has no config.json{hint}"
        if part.role == "adapter" and ADAPTER_CONFIG not in facts.files:
            return f"the folder has no {ADAPTER_CONFIG}"
        if pointers := self._pointers(part, facts):
            return f"{pointers[0]} is Git LFS's pointer to a file, not the file: run `git lfs pull` there"
        if (missing := facts.weights.missing) and self.reads_weights(part):
            count = len(facts.weights.files) + len(missing)
            return (
                f"{len(missing)} of {count} weight files are missing, {missing[0]} among them: copy it again"
            )
        return None
