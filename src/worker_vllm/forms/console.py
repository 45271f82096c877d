"""`worker-config.json`, the older form of RunPod's console: the same settings in its own shape."""

from __future__ import annotations

from typing import Any

import worker_vllm
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.forms.catalog import OF_THE_IMAGE
from worker_vllm.forms.entries import Entry, groups
from worker_vllm.forms.hub import CUDA_VERSIONS, form_default

IMAGE = "worker-vllm"

# the console asks for these itself
_ASKED_FOR = frozenset({"MODEL_NAME", "HF_TOKEN"})
_TYPES = {"text": "text", "number": "number", "boolean": "toggle", "choice": "select"}


def console_form(table: ArgumentTable) -> dict[str, Any]:
    """The content of `worker-config.json`."""
    offered = [
        (title, [entry for entry in entries if entry.variable not in _ASKED_FOR | OF_THE_IMAGE])
        for title, entries in groups(table)
    ]
    return {
        "versions": {
            table.version: {
                "imageName": f"{IMAGE}:{worker_vllm.__version__}-vllm{table.version}",
                "minimumCudaVersion": CUDA_VERSIONS[0],
                "categories": [
                    {"title": title, "settings": [entry.variable for entry in entries]}
                    for title, entries in offered
                ],
            }
        },
        "schema": {entry.variable: _setting(entry) for _, entries in offered for entry in entries},
    }


def _setting(entry: Entry) -> dict[str, Any]:
    default = form_default(entry)
    setting: dict[str, Any] = {
        "env_var_name": entry.variable,
        "value": "" if default is None else default,
        "title": entry.title,
        "description": entry.help,
        "required": False,
        "type": _TYPES[entry.type],
    }
    if entry.type == "choice":
        setting["options"] = [{"value": choice, "label": choice or "not chosen"} for choice in entry.choices]
    return setting
