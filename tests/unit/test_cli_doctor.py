"""`worker-vllm doctor` as somebody types it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import repositories
from tests.model_shapes import CONFIGS
from worker_vllm import cli

SHAPE = {key: value for key, value in CONFIGS["qwen2.5-7b"].items() if key != "architectures"}


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return str(repositories.write(tmp_path / "model", repositories.sharded(**SHAPE)))


def run(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> tuple[int, str, str]:
    code = cli.main(["doctor", *arguments], environ)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_it_reads_like_advice_from_a_colleague(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    code, out, _ = run(capsys, "--model", folder, "--gpus", "1xV100")
    assert code == 0
    assert out.startswith(
        f"{folder} on 1 x V100 (15.8 GiB, capability 7.0)\n\nIt may well start, but 2 things"
    )
    assert "requests of the full 32,768 tokens at once" in out
    assert "Do:  compare some answers before you rely on it" in out
    assert max(map(len, out.splitlines()[1:])) <= 110


def test_what_is_fatal_is_exit_code_1(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    code, out, _ = run(capsys, "--model", folder, "--gpus", "1xH100", MAX_MODEL_LEN="1000000")
    assert code == 1
    assert "It will not start, for 1 reason." in out
    assert "1. fatal: MAX_MODEL_LEN=1000000 is above the 32,768 positions" in out


def test_json_has_the_verdict_the_memory_and_the_findings(
    capsys: pytest.CaptureFixture[str], folder: str
) -> None:
    code, out, _ = run(capsys, "--json", "--gpus", "2xL4", MODEL_NAME=folder, RAY_CGRAPH_get_timeout="1")
    assert code == 0
    shown: dict[str, Any] = json.loads(out)
    assert shown.keys() == {
        "model", "hardware", "verdict", "memory", "smallest_choice", "findings", "warnings"
    }  # fmt: skip
    assert shown["verdict"] == "ok"
    assert [gpu["name"] for gpu in shown["hardware"]["gpus"]] == ["L4", "L4"]
    assert shown["memory"]["weights"] == 20_000  # 40 000 bytes on two GPUs
    assert [finding["code"] for finding in shown["findings"]] == ["ray-timeout"]
    assert shown["findings"][0].keys() == {"level", "code", "message", "cause", "remedy"}


def test_a_bad_configuration_is_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "--gpus", "1xH100", DTYPE="flaot16")
    assert code == 2
    assert out == ""
    assert "MODEL_NAME is not set" in err


def test_a_model_that_is_nowhere_is_a_finding(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "--model", "/nonexistent", "--gpus", "1xH100")
    assert code == 1
    assert "there is no such path on this machine" in out


def test_a_model_that_vllm_does_not_have_is_a_finding(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = repositories.sharded(**SHAPE, architectures=["NoSuchForCausalLM"])
    code, out, _ = run(capsys, "--model", str(repositories.write(tmp_path / "m", files)), "--gpus", "1xH100")
    assert code == 1
    assert "NoSuchForCausalLM" in out


@pytest.mark.parametrize("variable", ["TOKENIZER_MODE=mistral", "VLLM_USE_FASTOKENS=1"])
def test_a_tokenizer_that_cannot_be_made_is_a_finding(
    capsys: pytest.CaptureFixture[str], folder: str, variable: str
) -> None:
    name, _, value = variable.partition("=")
    code, out, _ = run(capsys, "--model", folder, "--gpus", "1xH100", **{name: value})
    assert code == 1
    assert f"1. fatal: {variable} needs" in out


@pytest.mark.parametrize(
    ("variable", "text", "code"),
    [
        ("TOKENIZER", "/nowhere", "tokenizer"),
        ("SPECULATIVE_CONFIG", '{"model": "/nowhere", "num_speculative_tokens": 3}', "speculator"),
        ("LORA_MODULES", "sql=/nowhere", "adapter"),
    ],
)
def test_what_is_named_and_nowhere_is_a_finding_beside_the_others(
    capsys: pytest.CaptureFixture[str], folder: str, variable: str, text: str, code: str
) -> None:
    status, out, _ = run(capsys, "--json", "--model", folder, "--gpus", "1xH100", **{variable: text})
    assert status == 1
    shown = json.loads(out)
    assert [(finding["level"], finding["code"]) for finding in shown["findings"]] == [("fatal", code)]
    assert "there is no such path on this machine" in shown["findings"][0]["message"]
    assert shown["memory"]["weights"] == 40_000


def test_of_a_model_that_vllm_reads_itself_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(capsys, "--json", "--model", "s3://bucket/model", "--gpus", "1xH100")
    assert status == 0
    assert [finding["code"] for finding in json.loads(out)["findings"]] == ["model-not-found"]


@pytest.mark.parametrize("gpus", ["1xH201", "many"])
def test_an_unknown_gpu_is_a_usage_error(capsys: pytest.CaptureFixture[str], gpus: str) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(["doctor", "--gpus", gpus], {"MODEL_NAME": "/x"})
    assert ended.value.code == 2
    assert f"--gpus {gpus}: no GPU that RunPod rents" in capsys.readouterr().err


def test_neither_vllm_nor_torch_is_imported(capsys: pytest.CaptureFixture[str], folder: str) -> None:
    before = set(sys.modules)
    run(capsys, "--model", folder, "--gpus", "1xH100")
    assert {"vllm", "torch", "transformers", "huggingface_hub"} & (set(sys.modules) - before) == set()
