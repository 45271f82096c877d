"""The one door to the configuration: `resolve` turns an environment into values, each with its source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from worker_vllm import settings, values
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.errors import ConfigurationError
from worker_vllm.settings import Effective, WorkerSettings

__all__ = ["Configuration", "Effective", "WorkerSettings", "resolve"]


@dataclass(frozen=True)
class Configuration:
    """Everything in force for one start of the worker.

    Attributes:
        worker: the worker's own settings.
        worker_effective: the same, each with its source.
        engine: vLLM's engine arguments that somebody chose (others keep vLLM's default), by name.
        frontend: likewise for vLLM's HTTP front end.
        served_model_names: what clients may call the model; the first stands in where they name none.
        warnings: one line each, for the log.
    """

    worker: WorkerSettings
    worker_effective: dict[str, Effective]
    engine: dict[str, Effective]
    frontend: dict[str, Effective]
    served_model_names: tuple[str, ...]
    warnings: tuple[str, ...]

    def chosen(self) -> dict[str, Any]:
        """Plain values of every vLLM argument that does not keep vLLM's default, by name."""
        return {name: effective.value for name, effective in {**self.engine, **self.frontend}.items()}


def resolve(environ: Mapping[str, str], table: ArgumentTable | None = None) -> Configuration:
    """The configuration that `environ` asks for.

    Raises:
        ConfigurationError: with every problem found.
    """
    if table is None:
        from worker_vllm import vllm_arguments

        table = vllm_arguments.read_table()
    worker = settings.read(environ)
    problems = list(worker.problems)
    chosen: dict[str, Effective] = {}
    aliases = {"model": "MODEL_NAME"}
    for argument in table.arguments:
        variable = aliases.get(argument.name, argument.variable)
        if values.is_unset(environ.get(variable)):
            continue
        try:
            chosen[argument.name] = Effective(argument.read(environ[variable]), "environment", variable)
        except ValueError as error:
            problems.append(f"{variable}={values.shown(environ[variable])}: {error}")
    if "model" not in chosen:
        problems.append("MODEL_NAME is not set: give a Hugging Face repository or a path")
    if problems:
        raise ConfigurationError(problems)
    names = chosen.get("served_model_name", Effective([chosen["model"].value])).value
    return Configuration(
        worker=worker.settings,
        worker_effective=worker.effective,
        engine={name: value for name, value in chosen.items() if table.by_name[name].home == "engine"},
        frontend={name: value for name, value in chosen.items() if table.by_name[name].home == "frontend"},
        served_model_names=tuple(names),
        warnings=(),
    )
