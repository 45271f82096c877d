"""`worker-vllm local`: from arguments and environment to a plan, and the demonstration's texts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from worker_vllm.cli import demo, local
from worker_vllm.cli.local_session import Plan


def plan(*arguments: str, environ: Mapping[str, str] | None = None) -> Plan:
    parser = argparse.ArgumentParser()
    local.add_parser(parser.add_subparsers())
    return local.make_plan(
        parser.parse_args(["local", *arguments]), {"MODEL_NAME": "m"} if environ is None else environ
    )


def test_the_default_is_one_own_worker_on_the_default_port() -> None:
    found = plan()
    assert (found.host, found.port, found.any_port_will_do, found.workers) == ("127.0.0.1", 8020, True, 1)
    assert found.command[0] == sys.executable
    assert found.command[1].endswith("src/handler.py")
    assert not found.demo
    assert found.log_path is None


def test_a_chosen_port_is_kept() -> None:
    found = plan("--port", "8020")
    assert (found.port, found.any_port_will_do) == (8020, False)


def test_once_is_a_demo() -> None:
    assert plan("--once").demo
    assert plan("--once").once


def test_model_goes_before_the_environment() -> None:
    assert plan("--model", "org/name").environment["MODEL_NAME"] == "org/name"
    assert plan(environ={"MODEL_NAME": "other"}).environment["MODEL_NAME"] == "other"


def test_a_model_folder_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    monkeypatch.chdir(tmp_path)
    absolute = str((tmp_path / "weights").resolve())
    assert plan("--model", "weights").environment["MODEL_NAME"] == absolute
    assert plan(environ={"MODEL_NAME": "weights"}).environment["MODEL_NAME"] == absolute


def test_a_relative_module_path_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = plan(environ={"MODEL_NAME": "m", "PYTHONPATH": "src:/abs"})
    assert found.environment["PYTHONPATH"] == f"{tmp_path / 'src'}:/abs"


def test_the_environment_given_is_not_changed() -> None:
    environ = {"MODEL_NAME": "m"}
    plan("--model", "other", environ=environ)
    assert environ == {"MODEL_NAME": "m"}


def test_the_demo_model_is_the_last_resort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / local.DEMO_MODEL).mkdir(parents=True)
    assert plan(environ={}).environment["MODEL_NAME"] == str((tmp_path / local.DEMO_MODEL).resolve())


def test_no_model_at_all_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(local, "_SOURCE", tmp_path / "src")
    with pytest.raises(local.UsageError, match=r"^no model: .*--model"):
        plan(environ={})


def test_a_worker_command_needs_no_model() -> None:
    found = plan("--worker-command", "python 'a b.py' --x", environ={})
    assert found.command == ("python", "a b.py", "--x")
    assert "MODEL_NAME" not in found.environment


def test_the_hub_file_s_variables_come_after_the_caller_s(tmp_path: Path) -> None:
    file = tmp_path / "tests.json"
    variables = [{"key": "MODEL_NAME", "value": "hub"}, {"key": "DTYPE", "value": "auto"}]
    file.write_text(json.dumps({"tests": [], "config": {"env": variables}}))
    found = plan("--hub-test", str(file), environ={"MODEL_NAME": "mine"})
    assert found.environment["MODEL_NAME"] == "mine"
    assert found.environment["DTYPE"] == "auto"
    assert found.policy.restart_limit == 0


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--workers", "-1"], "--workers -1: expected 0 or more"),
        (["--set", "nothing=1"], "--set 'nothing=1': expected NAME=VALUE"),
        (["--hub-test", "/nowhere/tests.json"], "--hub-test: cannot read /nowhere/tests.json"),
    ],
)
def test_bad_arguments_are_one_line_and_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    local.add_parser(parser.add_subparsers())
    assert local.run(parser.parse_args(["local", *arguments]), {"MODEL_NAME": "m"}) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"worker-vllm local: {reason}")


def test_the_choices_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    local.add_parser(parser.add_subparsers())
    assert local.run(parser.parse_args(["local", "--choices"]), {}) == 0
    assert "take_hold_s=25.0  [UNV] " in capsys.readouterr().out


def test_strict_delay_and_single_choices_reach_the_policy() -> None:
    policy = plan("--strict", "--rtt-ms", "100", "--set", "take_hold_s=5").policy
    assert policy.require_key
    assert policy.worker_rtt_ms == 100
    assert policy.take_hold_s == 5


def test_how_to_call_names_the_real_address_and_key() -> None:
    text = demo.how_to_call("http://127.0.0.1:4321/v2/local", "K")
    assert text.count("http://127.0.0.1:4321/v2/local/openai/v1") == 2
    assert "RUNPOD_ENDPOINT_BASE_URL=http://127.0.0.1:4321/v2" in text
    assert 'runpod.Endpoint("local", api_key="K")' in text


@pytest.mark.parametrize(
    ("output", "text"),
    [
        ("plain", "plain"),
        ({"choices": [{"tokens": ["Pa", "ris"]}], "usage": {}}, "Paris"),
        ({"choices": [{"text": "Paris"}]}, "Paris"),
        ({"other": 1}, '{"other": 1}'),
    ],
)
def test_a_job_s_output_is_shown_as_text(output: object, text: str) -> None:
    assert demo.text_of(output) == text
