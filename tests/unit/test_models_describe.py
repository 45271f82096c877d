"""Facts of a folder, and of a chat template."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import repositories
from worker_vllm.models import chat_template, describe


def test_a_folder_is_described_without_anything_else(tmp_path: Path) -> None:
    files = repositories.sharded(quantization_config={"quant_method": "AWQ"})
    facts = describe.folder(repositories.write(tmp_path, files))
    assert (facts.name, facts.source, facts.directory) == (str(tmp_path), "path", tmp_path)
    assert facts.config["model_type"] == "llama"
    assert facts.quantization == "awq"
    assert facts.weight_bytes == 40_000
    assert facts.weights.files == dict.fromkeys(repositories.SHARDS, 20_000)
    assert facts.tokenizer_config["eos_token"] == "</s>"
    assert facts.chat_template is not None
    assert facts.chat_template_problem is None
    assert describe.has_tokenizer(facts)


def test_an_empty_folder_has_no_facts_and_no_fault(tmp_path: Path) -> None:
    facts = describe.folder(tmp_path)
    assert (facts.config, facts.quantization, facts.auto_map) == ({}, None, {})
    assert facts.chat_template is None
    assert not facts.weights.complete


def test_a_folder_that_cannot_be_read_has_no_files(tmp_path: Path) -> None:
    assert describe.files_of(tmp_path / "nowhere") == {}


def test_a_link_that_leads_nowhere_is_no_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blobs" / "gone")
    assert describe.files_of(tmp_path) == {}


@pytest.mark.parametrize("text", [b"{", b"[]", b"\xff\xfe", b"[" * 5000])
def test_a_broken_config_is_an_empty_one(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "config.json").write_bytes(text)
    assert describe.folder(tmp_path).config == {}


def test_quantization_stands_in_one_of_several_places(tmp_path: Path) -> None:
    inner = {"text_config": {"quantization_config": {"quant_method": "fp8"}}}
    assert describe.folder(repositories.write(tmp_path / "a", {"config.json": inner})).quantization == "fp8"
    files = {"config.json": {"x": 1}, "hf_quant_config.json": {"producer": {"name": "modelopt"}}}
    assert describe.folder(repositories.write(tmp_path / "b", files)).quantization == "modelopt"


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"chat_template.jinja": "A", "tokenizer_config.json": {"chat_template": "B"}}, "A"),
        ({"chat_template.json": {"chat_template": "C"}}, "C"),
        ({"tokenizer_config.json": {"chat_template": "B"}}, "B"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
                }
            },
            "D",
        ),
        ({"tokenizer_config.json": {"chat_template": [{"name": "rag", "template": "R"}]}}, None),
        ({"tokenizer_config.json": {}}, None),
    ],
)
def test_a_chat_template_stands_in_one_of_several_places(
    tmp_path: Path, files: repositories.Files, template: str | None
) -> None:
    assert describe.folder(repositories.write(tmp_path, files)).chat_template == template


def test_a_template_that_does_not_parse_is_told_with_its_line() -> None:
    assert (
        chat_template.problem("a\n{% if %}") == "line 2: Expected an expression, got 'end of statement block'"
    )


def test_the_blocks_of_transformers_parse() -> None:
    text = "{% for m in messages %}{% generation %}{{ m }}{% endgeneration %}{% break %}{% endfor %}"
    assert chat_template.problem(text) is None
