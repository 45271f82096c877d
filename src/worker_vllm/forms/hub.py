"""`.runpod/hub.json`, the form of RunPod's Hub, and `.runpod/tests.json`, what the Hub tries before it
publishes."""

from __future__ import annotations

from typing import Any

from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.forms.catalog import OF_THE_IMAGE
from worker_vllm.forms.entries import REQUIRED, Entry, groups
from worker_vllm.forms.presets import PRESETS

CUDA_VERSIONS = ("13.0", "13.1", "13.2")
"""What a host's driver must offer: vLLM's image and its torch are built for CUDA 13.0. The lowest stands
first, since runpodctl takes the first for the minimum."""

TEST_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

_TEST_TIMEOUT_MS = 300_000


def hub_form(table: ArgumentTable) -> dict[str, Any]:
    """The content of `.runpod/hub.json`. Forms send only what is chosen: no entry has a default of its own
    unless its reason is stated in the catalog."""
    entries = [
        entry for _, members in groups(table) for entry in members if entry.variable not in OF_THE_IMAGE
    ]
    return {
        "title": "vLLM",
        "description": "Serve language models with vLLM: native jobs and the OpenAI routes, streamed.",
        "type": "serverless",
        "category": "language",
        "iconUrl": "https://github.com/vllm-project.png",
        "config": {
            "runsOn": "GPU",
            "containerDiskInGb": 150,
            "gpuIds": "ADA_80_PRO,AMPERE_80",
            "gpuCount": 1,
            "allowedCudaVersions": list(CUDA_VERSIONS),
            "presets": [dict(preset) for preset in PRESETS],
            "env": [{"key": entry.variable, "input": _input(entry)} for entry in entries],
        },
    }


def _input(entry: Entry) -> dict[str, Any]:
    required = entry.variable == REQUIRED
    shown: dict[str, Any] = {
        "name": entry.title,
        "type": "huggingface" if required else _type(entry),
        "description": entry.help,
        "required": required,
        "advanced": not required,
    }
    if entry.type == "choice":
        shown["options"] = [{"label": choice or "not chosen", "value": choice} for choice in entry.choices]
    if (default := form_default(entry)) is not None:
        shown["default"] = default
    return shown


def _type(entry: Entry) -> str:
    return entry.type if entry.type in ("number", "boolean") else "string"


def form_default(entry: Entry) -> str | int | float | bool | None:
    """What the form sends for `entry` if nobody touches it. A switch and a choice always send something: what
    happens without them."""
    if entry.default is not None:
        return entry.default
    if entry.type == "boolean":
        return bool(entry.own_default)
    if entry.type == "choice":
        return str(entry.own_default) if str(entry.own_default) in entry.choices else ""
    return None


def hub_tests() -> dict[str, Any]:
    """The content of `.runpod/tests.json`."""
    messages = [{"role": "user", "content": "What is the capital of France?"}]
    inputs: dict[str, dict[str, Any]] = {
        "native_prompt": {"prompt": "Hello World"},
        "native_messages": {"messages": messages, "sampling_params": {"max_tokens": 32, "temperature": 0}},
        "native_stream": {"prompt": "Count to ten:", "stream": True, "sampling_params": {"max_tokens": 32}},
        "openai_chat": {
            "openai_route": "/v1/chat/completions",
            "openai_input": {"messages": messages, "max_tokens": 32},
        },
        "openai_chat_stream": {
            "openai_route": "/v1/chat/completions",
            "openai_input": {"messages": messages, "max_tokens": 32, "stream": True},
        },
        "openai_models": {"openai_route": "/v1/models"},
    }
    return {
        "tests": [
            {"name": name, "input": content, "timeout": _TEST_TIMEOUT_MS} for name, content in inputs.items()
        ],
        "config": {
            "gpuTypeId": "NVIDIA A40",
            "gpuCount": 1,
            "env": [{"key": "MODEL_NAME", "value": TEST_MODEL}],
            "allowedCudaVersions": list(CUDA_VERSIONS),
        },
    }
