"""The tests' tiny model: small, the same everywhere, and a file that others can read."""

from __future__ import annotations

from pathlib import Path

import pytest
from safetensors import safe_open

from builder import tiny_model


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    for name in tiny_model.TOKENIZER_FILES:
        (folder / name).write_text(name)
    return folder


def built(folder: Path, tokenizer: Path) -> Path:
    folder.mkdir()
    tiny_model.build(folder, tokenizer)
    return folder / "model.safetensors"


def test_it_is_small(tmp_path: Path, tokenizer: Path) -> None:
    assert built(tmp_path / "model", tokenizer).stat().st_size < 1_000_000


def test_it_is_made_the_same_each_time(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_model, "VOCABULARY", 512)
    first = built(tmp_path / "first", tokenizer)
    second = built(tmp_path / "second", tokenizer)
    assert first.read_bytes() == second.read_bytes()


def test_the_weights_have_the_shapes_of_its_configuration(
    tmp_path: Path, tokenizer: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_model, "VOCABULARY", 512)
    with safe_open(built(tmp_path / "model", tokenizer), framework="numpy") as file:
        shapes = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
        types = {file.get_slice(name).get_dtype() for name in shapes}
    assert types == {"BF16"}
    assert shapes["model.embed_tokens.weight"] == [tiny_model.VOCABULARY, tiny_model.HIDDEN]
    assert shapes["model.layers.1.self_attn.k_proj.weight"] == [tiny_model.HEAD_DIMENSION, tiny_model.HIDDEN]
    assert shapes["model.norm.weight"] == [tiny_model.HIDDEN]
