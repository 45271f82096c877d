from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker_vllm.configuration import model_config


def test_the_configuration_of_a_folder_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_attention_heads": 8}')
    assert model_config.read(str(tmp_path), None) == {"num_attention_heads": 8}


@pytest.mark.parametrize("text", [None, "", "{", "[]", "\ud800".encode("utf-16", "surrogatepass")])
def test_what_cannot_be_read_is_none(tmp_path: Path, text: str | bytes | None) -> None:
    if text is not None:
        content = text if isinstance(text, bytes) else text.encode()
        (tmp_path / "config.json").write_bytes(content)
    assert model_config.read(str(tmp_path), None) is None


@pytest.mark.parametrize("model", ["org/model", "", "/nonexistent", "x\0y", "s3://bucket/x"])
def test_what_is_no_folder_is_none(model: str) -> None:
    assert model_config.read(model, "main") is None


@pytest.mark.parametrize(
    ("config", "heads"),
    [
        ({"num_attention_heads": 32}, 32),
        ({"n_head": 12}, 12),
        ({"text_config": {"num_attention_heads": 16}, "num_attention_heads": 12}, 16),
        ({"thinker_config": {"text_config": {"num_attention_heads": 28}}}, 28),
        ({"text_config": {}}, None),
        ({"text_config": {"model_type": "gemma3_text"}}, 8),  # Gemma 3 4B leaves it to its class
        ({"num_attention_heads": 0}, None),
        ({"num_attention_heads": "8"}, None),
        ({}, None),
    ],
)
def test_attention_heads_of_the_text_model(config: dict[str, Any], heads: int | None) -> None:
    assert model_config.attention_heads(json.loads(json.dumps(config))) == heads


QWEN = {"num_attention_heads": 28, "num_key_value_heads": 4, "vocab_size": 152064}


@pytest.mark.parametrize(
    ("config", "gpus"),
    [
        (QWEN, [1, 2, 4]),  # 7 and 14 divide the heads alone
        ({"num_attention_heads": 32, "num_key_value_heads": 2, "vocab_size": 128256}, [1, 2, 4, 8, 16]),
        ({"text_config": QWEN}, [1, 2, 4]),
        ({"decoder_attention_heads": 20, "vocab_size": 51866}, [1, 2, 4]),  # Whisper
        ({"num_attention_heads": 128, "num_key_value_heads": 128, "kv_lora_rank": 512}, [1, 2, 4, 8, 16]),
        ({"num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152}, [1, 3]),
        ({}, list(range(1, 17))),
    ],
)
def test_a_model_is_shared_by_what_divides_heads_and_vocabulary(
    config: dict[str, Any], gpus: list[int]
) -> None:
    assert [n for n in range(1, 17) if model_config.can_be_shared(config, n)] == gpus
