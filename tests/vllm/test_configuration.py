"""The configuration through the commands, as an operator meets it: what is told, which code, how soon."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests import models

ROOT = Path(__file__).parents[2]

# the promises are for two idle cores; the machine that runs the tests may be busy
SETTINGS_SECONDS = 10
REFUSAL_SECONDS = 15
BUSY_FACTOR = 3


def run(*arguments: str, **environ: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """The command's result, and the CPU seconds that it took."""
    before = os.times()
    kept = {name: text for name, text in os.environ.items() if name in ("PATH", "HOME", "LANG")}
    process = subprocess.run(
        [sys.executable, "-m", "worker_vllm", *arguments],
        env={**kept, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", **environ},
        capture_output=True,
        text=True,
        timeout=BUSY_FACTOR * 60,
        stdin=subprocess.DEVNULL,
    )
    after = os.times()
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return process, cpu


def test_settings_explain_themselves_within_their_time() -> None:
    begun = time.monotonic()
    process, _ = run("settings", "--json", MODEL_NAME=str(models.tiny()))
    assert time.monotonic() - begun < SETTINGS_SECONDS
    shown = json.loads(process.stdout)
    assert shown["engine"]["enforce_eager"] == {"value": True, "source": "profile"}
    assert process.stderr == ""


@pytest.mark.parametrize(
    ("environ", "reason"),
    [
        ({"DTYPE": "flaot16"}, "DTYPE='flaot16': expected one of"),
        ({"TOOL_CALL_PARSER": "hermess"}, "did you mean hermes?"),
        ({"ENABLE_AUTO_TOOL_CHOICE": "true"}, "needs TOOL_CALL_PARSER"),
        ({"MODEL_NAME": ""}, "MODEL_NAME is not set"),
    ],
)
def test_a_worker_with_a_mistake_stops_at_once(environ: dict[str, str], reason: str) -> None:
    begun = time.monotonic()
    process, _ = run("run", **{"MODEL_NAME": str(models.tiny()), **environ})
    assert time.monotonic() - begun < REFUSAL_SECONDS
    assert process.returncode == 2
    last = process.stderr.splitlines()[-1]
    assert last.startswith("worker-vllm cannot start (exit code 2): bad configuration: ")
    assert reason in last
    assert "Traceback" not in process.stderr


def test_a_mistake_that_only_vllm_can_see_stops_the_worker_before_weights_load() -> None:
    # discard: nobody answers there, and nobody is asked before the engine has started
    platform = {"RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1:9/job-take?gpu=x", "RUNPOD_POD_ID": "worker"}
    mistake = {"SPECULATIVE_CONFIG": '{"method": "ngram"}', "VLLM_LOGGING_LEVEL": "WARNING"}
    process, cpu = run("run", MODEL_NAME=str(models.tiny()), **mistake, **platform)
    assert process.returncode == 2
    last = process.stderr.splitlines()[-1]
    assert "num_speculative_tokens must be provided" in last
    assert "SPECULATIVE_CONFIG" in last
    # nearly all of it is importing vLLM, on one core; without bytecode that takes three times as long
    assert cpu < REFUSAL_SECONDS * BUSY_FACTOR * 2


@pytest.mark.parametrize("verb", ["settings", "run"])
def test_no_secret_is_told_of_a_worker_that_cannot_start(verb: str) -> None:
    secrets = {"HF_TOKEN": "hf_swordfish0123", "RUNPOD_AI_API_KEY": "swordfish4567"}
    process, _ = run(verb, MAX_NUM_SEQS="hf_swordfish0123", DTYPE="swordfish4567", **secrets)
    assert process.returncode == 2
    assert "swordfish" not in process.stdout + process.stderr
