"""Model shapes without weights: the folders that the GPU benchmark runs on."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from builder.gpu.dummy_models import SHAPES, build, main, pad_vocabulary
from tests.documents import ROOT


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    description = {"model": {"vocab": {"a": 0, "Ġaaaa": 1, "b": 2}}}
    (folder / "tokenizer.json").write_text(json.dumps(description), encoding="utf-8")
    for name in ("tokenizer_config.json", "chat_template.jinja"):
        (folder / name).write_text("{}", encoding="utf-8")
    return folder


def test_every_id_of_the_shape_has_a_word(tokenizer: Path, tmp_path: Path) -> None:
    """A random model picks each of them as often as any other."""
    build(tmp_path / "m", {"vocab_size": 10}, tokenizer)
    vocabulary = json.loads((tmp_path / "m" / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert sorted(vocabulary.values()) == list(range(10))


def test_known_words_keep_their_ids() -> None:
    vocabulary = {"Ġaaaa": 0, "Ġaaac": 1}
    pad_vocabulary(vocabulary, 4)
    assert vocabulary == {"Ġaaaa": 0, "Ġaaac": 1, "Ġaaab": 2, "Ġaaad": 3}


def test_a_folder_is_written_per_shape(tokenizer: Path, tmp_path: Path) -> None:
    assert main([str(tmp_path / "out"), str(tokenizer)]) == 0
    assert sorted(folder.name for folder in (tmp_path / "out").iterdir()) == sorted(SHAPES)
    config = json.loads((tmp_path / "out" / "dummy-8b" / "config.json").read_text(encoding="utf-8"))
    assert (config["num_hidden_layers"], config["hidden_size"]) == (32, 4096)


def test_without_a_folder_the_usage_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "OUT_DIR" in capsys.readouterr().out


def test_the_script_does_what_its_head_lists() -> None:
    """`volume` once stood behind the branch that refuses everything else."""
    text = (ROOT / "builder" / "gpu" / "bench_h200.sh").read_text(encoding="utf-8")
    listed = re.findall(r"^#   builder/gpu/bench_h200.sh (\w+)", text, re.MULTILINE)
    branches = re.findall(r"^(\w+|\*)\)", text[text.index("case $what in") :], re.MULTILINE)
    assert sorted(branches) == sorted([*listed, "*"])
    assert branches[-1] == "*"
