"""The engine that every target of a benchmark runs, in the form that each kind of target wants it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

SERVED_NAME = "bench"
"""The model's name in requests, the same for every target that we start."""


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """The engine that every target is to run.

    Attributes:
        model: folder or hub name.
        arguments: vLLM's engine arguments by field name, values as text (`{"max_model_len": "512"}`).
    """

    model: str
    arguments: Mapping[str, str] = field(default_factory=dict)

    def environment(self) -> dict[str, str]:
        """As a worker reads them: an upper-case variable each."""
        variables = {name.upper(): value for name, value in self.arguments.items()}
        return {"MODEL_NAME": self.model, "OPENAI_SERVED_MODEL_NAME_OVERRIDE": SERVED_NAME, **variables}

    def flags(self) -> list[str]:
        """As `vllm serve` reads them. True and false become a flag and its negative."""
        flags = ["--served-model-name", SERVED_NAME]
        for name, value in self.arguments.items():
            flag = name.replace("_", "-")
            if value in ("true", "false"):
                flags.append(f"--{flag}" if value == "true" else f"--no-{flag}")
            else:
                flags += [f"--{flag}", value]
        return flags

    def fields(self) -> dict[str, Any]:
        """As AsyncEngineArgs takes them: numbers, booleans and JSON as such, anything else as text."""
        return {"model": self.model, "served_model_name": SERVED_NAME} | {
            name: _typed(value) for name, value in self.arguments.items()
        }


def _typed(value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value
