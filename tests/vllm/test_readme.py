"""What README.md and docs/jobs.md tell a reader to type, typed: at `worker-vllm local` with a tiny model."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests import models
from tests.contract.emulator_process import descendants, environment, living, local_process
from tests.documents import JOBS, README, Block, blocks, shape

# The worker's start is in the first test's time, and this machine's cores are seldom ours alone.
pytestmark = pytest.mark.timeout(900)

WAIT_SECONDS = 200
ENVIRONMENT = {
    # the name in the examples of jobs.md comes first, and the README's is served as well
    "OPENAI_SERVED_MODEL_NAME_OVERRIDE": "smollm2,Qwen/Qwen3-8B",
    # the model talks nonsense without end; chats that do not say max_tokens need one
    "OVERRIDE_GENERATION_CONFIG": '{"max_new_tokens": 64}',
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
}
LIVE = "https://api.runpod.ai/v2/ENDPOINT_ID"
LOCAL = "http://127.0.0.1:8020/v2/local"


def of(language: str, *documents: Path) -> list[Any]:
    """The documents' blocks in a language, each named by its place."""
    return [
        pytest.param(block, id=f"{document.name}:{block.line}")
        for document in documents
        for block in blocks(document)
        if block.language == language
    ]


def commands() -> list[Any]:
    """What is typed into a shell, but for set-up and Docker: tests/unit/test_docs.py looks at those."""
    return [
        case for case in of("bash", README, JOBS) if not case.values[0].text.startswith(("make", "docker"))
    ]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a platform with one worker; at its end nothing is left of them."""
    log = tmp_path_factory.mktemp("local") / "log"
    arguments = ("--model", str(models.tiny()), "--set", "send_policy=true")
    try:
        with local_process(*arguments, worker=None, log=log, **ENVIRONMENT) as running:
            family = descendants(running.process.pid)
            yield running.url
            assert running.stop(signal.SIGTERM, timeout=60) == 0
            assert living(family) == set()
    except AssertionError as error:
        error.add_note("\n".join(log.read_text().splitlines()[-20:]))
        raise


def typed(command: list[str], text: str, local: str, folder: Path) -> str:
    """What a program prints that reads `text`, with the reader's endpoint and key for the placeholders."""
    for placeholder, meant in {
        LIVE: local,
        LOCAL: local,
        '"ENDPOINT_ID"': '"local"',
        "RUNPOD_API_KEY": "any",
    }.items():
        text = text.replace(placeholder, meant)
    assert "ENDPOINT_ID" not in text and "api.runpod.ai" not in text
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run = subprocess.run(
        [*command, text],
        env=environment(
            PATH=path,
            RUNPOD_ENDPOINT_BASE_URL=local.rpartition("/")[0],
            NO_PROXY="127.0.0.1",
            HF_HUB_OFFLINE="1",
        ),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("block", of("json", JOBS))
def test_an_example_gives_what_it_shows(local: str, block: Block) -> None:
    job = json.loads(block.text)
    job_id = requests.post(f"{local}/run", json=job, timeout=WAIT_SECONDS).json()["id"]
    wait = f"wait={WAIT_SECONDS * 1000}"
    answer = requests.get(f"{local}/status-sync/{job_id}?{wait}", timeout=WAIT_SECONDS + 10).json()
    if isinstance(block.prints, list):
        assert answer["status"] == "COMPLETED"
        answer = answer["output"]
    elif "stream" in block.prints:
        in_time = answer["status"] == "COMPLETED"
        answer = requests.get(f"{local}/stream/{job_id}", timeout=WAIT_SECONDS).json()
        if "executionTimeout" in block.text:
            # the beginning and the end are shown; a fast machine's tiny model is through before its time is
            assert shape(answer["stream"][0]) == shape(block.prints["stream"][0])
            assert in_time or shape(answer["stream"][-1]) == shape(block.prints["stream"][-1])
            return
    assert shape(answer) == shape(block.prints)


@pytest.mark.parametrize("block", commands())
def test_a_command_does_what_it_says(local: str, block: Block, tmp_path: Path) -> None:
    printed = typed(["bash", "-c"], block.text, local, tmp_path)
    if block.prints is not None:
        assert shape(json.loads(printed)) == shape(block.prints)
    elif "chat/completions" in block.text:
        answer = json.loads(printed)
        # what the tiny model samples may be its end at once
        assert isinstance(answer["choices"][0]["message"]["content"], str)
        assert answer["usage"]["completion_tokens"] >= 1
    else:
        assert block.text.rstrip().endswith("worker-vllm settings")
        assert "Qwen/Qwen3-8B" in printed and "8000" in printed


@pytest.mark.parametrize("block", of("python", README, JOBS))
def test_a_snippet_does_what_it_says(local: str, block: Block, tmp_path: Path) -> None:
    printed = typed([sys.executable, "-c"], block.text, local, tmp_path)
    assert printed.strip()
    if block.prints is not None:
        assert shape(ast.literal_eval(printed)) == shape(block.prints)
