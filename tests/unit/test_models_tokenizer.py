"""Whether there is a tokenizer, and the one that the settings ask for."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from worker_vllm import installed
from worker_vllm.models import ModelFacts, tokenizer


def problems(*files: str, environ: Mapping[str, str] | None = None, mode: str = "auto") -> list[str]:
    facts = ModelFacts("org/m", "hub", tokenizer_files=dict.fromkeys(files, 1))
    return tokenizer.problems(facts, environ or {}, mode=mode)


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tekken.json",
        "vocab.json",
        "tokenizer_config.json",
        "qwen.tiktoken",
        "tokenization_x.py",
    ],
)
def test_one_file_is_enough_for_a_tokenizer(name: str) -> None:
    assert problems("config.json", name) == []


def test_a_repository_without_a_tokenizer_is_told() -> None:
    (problem,) = problems("config.json", "model.safetensors")
    assert problem == "org/m has no tokenizer: name another repository's with TOKENIZER"


def test_nothing_is_said_where_nothing_is_known() -> None:
    assert problems() == []


def test_mistrals_tokenizer_needs_its_files() -> None:
    assert "leave TOKENIZER_MODE out" in problems("tokenizer.json", mode="mistral")[0]
    assert problems("tekken.json", mode="mistral") == []
    assert problems("tokenizer.model.v3", mode="mistral") == []


@pytest.mark.parametrize(
    ("version", "count"), [(None, 1), ("0.1.9", 1), ("0.2.0", 0), ("1.0", 0), ("0.2.1.dev3", 0)]
)
def test_fast_tokens_need_their_package(
    version: str | None, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "version", lambda _: version)
    assert len(problems("tokenizer.json", environ={"VLLM_USE_FASTOKENS": "1"})) == count
    assert problems("tokenizer.json", environ={"VLLM_USE_FASTOKENS": "0"}) == []
