"""Files that are written from the code: the forms of RunPod's Hub and console, and the page of all
settings."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

import worker_vllm
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.forms.console import console_form
from worker_vllm.forms.hub import hub_form, hub_tests
from worker_vllm.forms.page import page
from worker_vllm.forms.upgrading import upgrading

DOCS = PurePosixPath("docs/configuration.md")
UPGRADING = PurePosixPath("docs/upgrading.md")


def documents(table: ArgumentTable) -> dict[PurePosixPath, str]:
    """The documentation, by its path in the repository."""
    return {DOCS: page(table), UPGRADING: upgrading(table, worker_vllm.__version__)}


def hub_files(table: ArgumentTable) -> dict[PurePosixPath, str]:
    """The forms and the Hub's tests, by their paths in the repository."""
    return {
        PurePosixPath(".runpod/hub.json"): _json(hub_form(table)),
        PurePosixPath(".runpod/tests.json"): _json(hub_tests()),
        PurePosixPath("worker-config.json"): _json(console_form(table)),
    }


def _json(content: Any) -> str:
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
