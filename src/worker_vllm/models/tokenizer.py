"""Whether there is the tokenizer that a model needs and the settings ask for."""

from __future__ import annotations

from collections.abc import Mapping

from worker_vllm import installed, values
from worker_vllm.models import describe
from worker_vllm.models.facts import ModelFacts

_MISTRAL_FILES = ("tekken.json", "tokenizer.model", "tokenizer.mm.model")
_FAST_PACKAGE = "fastokens"
_FAST_SINCE = (0, 2)  # vllm/tokenizers/fastokens.py


def problems(model: ModelFacts, environ: Mapping[str, str], *, mode: str = "auto") -> list[str]:
    """What keeps vLLM from making the tokenizer, a sentence each.

    Args:
        mode: TOKENIZER_MODE.
        environ: where VLLM_USE_FASTOKENS is.
    """
    found: list[str] = []
    owner = model.tokenizer or model.name
    files = model.tokenizer_files
    if files and not describe.has_tokenizer(model) and "tokenizer_config.json" not in files:
        found.append(f"{owner} has no tokenizer: name another repository's with TOKENIZER")
    elif mode == "mistral" and files and not any(name.startswith(_MISTRAL_FILES) for name in files):
        found.append(
            f"TOKENIZER_MODE=mistral needs tekken.json or tokenizer.model, and {owner} has neither: leave "
            "TOKENIZER_MODE out"
        )
    wants_fast = environ.get("VLLM_USE_FASTOKENS", "").strip().lower() in values.TRUE_WORDS
    if wants_fast and installed.numbers(installed.version(_FAST_PACKAGE) or "") < _FAST_SINCE:
        least = ".".join(map(str, _FAST_SINCE))
        found.append(
            f"VLLM_USE_FASTOKENS=1 needs the package {_FAST_PACKAGE} {least} or later, which is not here: "
            "leave the variable out, or add the package to the image"
        )
    return found
