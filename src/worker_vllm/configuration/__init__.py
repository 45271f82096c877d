"""The one door to the configuration: `resolve` turns an environment into values, each with its source.

Sources, weakest first: vLLM's defaults, the machine's profile, the configuration file, the environment,
VLLM_EXTRA_ARGS; a model baked into the image stands in where none of them names another.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from worker_vllm import env_names, settings, values
from worker_vllm.configuration import (
    checks,
    config_file,
    engine_args,
    extra_args,
    machine,
    manifest,
    model_config,
    profile,
    unknown,
    variables,
)
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.configuration.machine import Machine
from worker_vllm.configuration.report import Report
from worker_vllm.configuration.secrets import Redactor, hidden_from_children, withheld
from worker_vllm.configuration.translations import Translator
from worker_vllm.errors import ConfigurationError
from worker_vllm.settings import Effective, WorkerSettings

__all__ = ["Configuration", "Effective", "Machine", "WorkerSettings", "resolve"]

_OBJECT_STORES = ("s3://", "gs://", "az://", "r2://")
_STREAMING_LOADERS = ("runai_streamer", "runai_streamer_sharded", "tensorizer", "modelexpress")


@dataclass(frozen=True)
class Configuration:
    """Everything in force for one start of the worker.

    Attributes:
        worker: the worker's own settings.
        worker_effective: the same, each with its source.
        engine: every argument of vLLM's engine, by name.
        frontend: every argument of vLLM's HTTP front end, by name.
        served_model_names: what clients may call the model; the first stands in where they name none.
        warnings: one line each, for the log.
        environment: changes that vLLM and the hub libraries need in the process's environment; None removes.
        hidden_from_children: secrets that the engine's processes must not inherit.
        passed_through: variables that vLLM itself reads.
        redactor: strikes this configuration's secrets out of what is to be shown.
    """

    worker: WorkerSettings
    worker_effective: dict[str, Effective]
    engine: dict[str, Effective]
    frontend: dict[str, Effective]
    served_model_names: tuple[str, ...]
    warnings: tuple[str, ...]
    environment: dict[str, str | None] = field(default_factory=dict, repr=False)
    hidden_from_children: tuple[str, ...] = ()
    passed_through: tuple[str, ...] = ()
    redactor: Redactor = field(default_factory=lambda: Redactor({}), repr=False)

    def __repr__(self) -> str:
        """What was chosen, without secrets: a configuration may end up in a log or a traceback."""
        values = {name: effective.shown() for name, effective in self.chosen().items()}
        return f"Configuration({self.redactor.data(values)!r})"

    def chosen(self) -> dict[str, Effective]:
        """vLLM's arguments that do not keep vLLM's default, by name."""
        arguments = {**self.engine, **self.frontend}
        return {name: effective for name, effective in arguments.items() if effective.source != "default"}

    def summary(self) -> str:
        """What was chosen for vLLM and by what, in one line for the log."""
        return ", ".join(
            f"{name}={self.redactor.data(effective.shown())} ({effective.variable or effective.source})"
            for name, effective in self.chosen().items()
        )

    def apply_environment(self, environ: MutableMapping[str, str]) -> None:
        """Make the changes of `environment`. To be called before anything imports vLLM or the hub library,
        which read some of it once and for all."""
        for name, text in self.environment.items():
            if text is None:
                environ.pop(name, None)
            else:
                environ[name] = text

    def secrets_withheld(self, environ: MutableMapping[str, str]) -> AbstractContextManager[None]:
        """A context in which `environ` lacks the secrets that processes started meanwhile do not need."""
        return withheld(environ, self.hidden_from_children)


def resolve(
    environ: Mapping[str, str],
    *,
    table: ArgumentTable | None = None,
    this_machine: Machine | None = None,
    root: Path = Path("/"),
    read_model_config: model_config.Reader = model_config.read,
) -> Configuration:
    """The configuration that `environ` asks for. Neither starts an engine nor changes anything.

    Args:
        table: vLLM's arguments; those of the installed vLLM if None.
        this_machine: what the profile goes by; the real one if None.
        root: where the image's own files are.
        read_model_config: reads a model's config.json; asked only where there are several GPUs to share out,
            or old variables of its rotary embedding.

    Raises:
        ConfigurationError: with every problem found.
    """
    table = table or _installed_table()
    report = Report()
    worker = settings.read(environ)
    for problem in worker.problems:
        report.problem(problem)
    given = {
        **config_file.read(environ, table, root, report),
        **variables.read(environ, table, report),
        **extra_args.read(environ, table, report),
    }
    baked = manifest.read(root, report)
    repository = baked.repository if baked and manifest.apply(baked, given, report) else None
    Translator(environ, table, given, read_model_config, report).translate()
    chosen = engine_args.read(given, environ, table, report)
    if "model" not in chosen and "model" not in given:
        report.problem("MODEL_NAME is not set: give a repository of Hugging Face, as in org/name, or a path")
    unknown.check(environ, table, report)
    host = this_machine or machine.detect(environ)
    chosen |= profile.derive(chosen, environ, host, table, read_model_config, report)
    checks.check(chosen, table, report)
    redactor = Redactor(environ, _secret_values(chosen))
    if report.problems:
        raise ConfigurationError([redactor.text(problem) for problem in report.problems])
    names = _served_names(chosen, repository)
    chosen["served_model_name"] = _named(chosen, names)
    return Configuration(
        worker=worker.settings,
        worker_effective=worker.effective,
        engine=_complete(chosen, table, "engine"),
        frontend=_complete(chosen, table, "frontend"),
        served_model_names=names,
        warnings=tuple(redactor.text(warning) for warning in report.warnings),
        environment=_environment(environ, chosen, offline=repository is not None or _is_baked(chosen)),
        hidden_from_children=hidden_from_children(environ, reads_storage=_reads_storage(chosen)),
        passed_through=tuple(sorted(name for name in environ if name in table.environment)),
        redactor=redactor,
    )


def _installed_table() -> ArgumentTable:
    from worker_vllm import vllm_table

    return vllm_table.installed_table()


def _complete(chosen: Mapping[str, Effective], table: ArgumentTable, home: str) -> dict[str, Effective]:
    return {
        argument.name: chosen.get(argument.name, Effective(argument.default))
        for argument in table.arguments
        if argument.home == home
    }


def _secret_values(chosen: Mapping[str, Effective]) -> list[Any]:
    return [
        item
        for effective in chosen.values()
        if effective.secret
        for item in (effective.value if isinstance(effective.value, list) else [effective.value])
    ]


def _is_baked(chosen: Mapping[str, Effective]) -> bool:
    return chosen["model"].source == "baked"


def _served_names(chosen: Mapping[str, Effective], repository: str | None) -> tuple[str, ...]:
    """The names that the user chose; else the model as given, its repository, and a local folder's own
    name."""
    served = chosen.get("served_model_name")
    if served is not None:
        return tuple(dict.fromkeys(str(name) for name in served.value))
    model = str(chosen["model"].value)
    names = [repository or manifest.repository_of(model), model]
    if Path(model).is_dir():
        names.append(Path(model).name)
    return tuple(dict.fromkeys(name for name in names if name))


def _named(chosen: Mapping[str, Effective], names: tuple[str, ...]) -> Effective:
    served = chosen.get("served_model_name")
    if served is not None:
        return Effective(list(names), served.source, served.variable)
    return Effective(list(names), "profile", chosen["model"].variable)


def _reads_storage(chosen: Mapping[str, Effective]) -> bool:
    names = [str(chosen[name].value) for name in ("model", "tokenizer") if name in chosen]
    loader = chosen.get("load_format")
    return any(name.startswith(_OBJECT_STORES) for name in names) or (
        loader is not None and loader.value in _STREAMING_LOADERS
    )


def _environment(
    environ: Mapping[str, str], chosen: Mapping[str, Effective], *, offline: bool
) -> dict[str, str | None]:
    changes: dict[str, str | None] = {}
    token = chosen.get("hf_token")
    if token is not None and isinstance(token.value, str) and environ.get("HF_TOKEN") != token.value:
        # the hub library and the tokenizers look here, not at vLLM's argument
        changes["HF_TOKEN"] = token.value
    if offline:
        changes |= {name: "1" for name in manifest.OFFLINE if values.is_unset(environ.get(name))}
    timeout = environ.get("VLLM_STARTUP_TIMEOUT", "")
    if not values.is_unset(timeout) and values.is_unset(environ.get("VLLM_ENGINE_READY_TIMEOUT_S")):
        changes["VLLM_ENGINE_READY_TIMEOUT_S"] = timeout.strip()
    # vLLM warns of each VLLM_ name that it does not know, and switches bearer auth on for VLLM_API_KEY
    ours = ("VLLM_API_KEY", "VLLM_ATTENTION_BACKEND", "VLLM_STARTUP_TIMEOUT", "VLLM_BASE_URL", *env_names.OWN)
    changes |= {
        name: None
        for name in environ
        if name in ours or name.startswith((env_names.ARGUMENT_PREFIX, "VLLM_RUNPOD_"))
    }
    return changes
