from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker_vllm import cli


def run(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> tuple[int, str, str]:
    code = cli.main(["settings", *arguments], environ)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def run_json(capsys: pytest.CaptureFixture[str], *arguments: str, **environ: str) -> dict[str, Any]:
    code, out, _ = run(capsys, "--json", *arguments, **environ)
    assert code == 0
    content: dict[str, Any] = json.loads(out)
    return content


def test_json_has_four_groups_with_value_and_source(capsys: pytest.CaptureFixture[str]) -> None:
    shown = run_json(
        capsys, MODEL_NAME="org/m", MAX_NUM_SEQS="3", LOG_FORMAT="json", TOOL_CALL_PARSER="hermes"
    )
    assert shown.keys() == {"worker", "engine", "frontend", "warnings"}
    assert shown["worker"] == {
        "log_format": {"value": "json", "source": "environment", "variable": "LOG_FORMAT"}
    }
    assert shown["engine"]["max_num_seqs"] == {
        "value": 3,
        "source": "environment",
        "variable": "MAX_NUM_SEQS",
    }
    assert shown["engine"]["model"]["value"] == "org/m"
    assert shown["frontend"]["tool_call_parser"]["value"] == "hermes"
    assert isinstance(shown["warnings"], list)


def test_only_what_differs_is_shown_unless_all_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert "seed" not in run_json(capsys, MODEL_NAME="org/m")["engine"]
    everything = run_json(capsys, "--all", MODEL_NAME="org/m")
    assert everything["engine"]["seed"] == {"value": 0, "source": "default"}
    assert everything["worker"]["default_max_tokens"] == {"value": 100, "source": "default"}


def test_the_text_names_the_model_the_sources_and_the_warnings(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, MODEL_NAME="org/m", MAX_NUM_SEQS="3", SWAP_SPACE="4")
    assert code == 0
    assert "Clients call the model org/m." in out
    assert any(
        line.split() == ["max_num_seqs", "3", "environment", "MAX_NUM_SEQS"] for line in out.splitlines()
    )
    assert "SWAP_SPACE" in out


def test_a_bad_configuration_exits_2_with_every_problem_on_standard_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, out, err = run(capsys, "--json", MAX_NUM_SEQS="many", DTYPE="flaot16")
    assert code == 2
    assert out == ""
    assert "bad configuration (3 problems):" in err
    for problem in ("MAX_NUM_SEQS='many'", "DTYPE='flaot16'", "MODEL_NAME is not set"):
        assert problem in err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("worker-vllm cannot start (exit code 2): bad configuration: ")


@pytest.mark.parametrize("arguments", [(), ("--json",), ("--all",), ("--json", "--all")])
def test_no_secret_is_shown(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...]) -> None:
    secrets = {
        "HF_TOKEN": "hf_swordfish0123",
        "RUNPOD_AI_API_KEY": "swordfish4567",
        "VLLM_API_KEY": "swordfish8901",
    }
    leaked = {"HF_OVERRIDES": '{"x": "hf_swordfish0123"}', "DOWNLOAD_DIR": "/x/swordfish4567"}
    code, out, err = run(capsys, *arguments, MODEL_NAME="org/m", **secrets, **leaked)
    assert code == 0
    assert "swordfish" not in out + err
    assert "***" in out


def test_the_files_are_written_below_the_root_that_is_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, _, _ = run(capsys, "--docs", "--hub", "--root", str(tmp_path))
    assert code == 0
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert written == {
        "docs/configuration.md",
        "docs/upgrading.md",
        "worker-config.json",
        ".runpod/hub.json",
        ".runpod/tests.json",
    }
