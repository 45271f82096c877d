"""Variables that look like settings and are none."""

from __future__ import annotations

from collections.abc import Mapping

from worker_vllm import env_names, settings, values
from worker_vllm.configuration import variables
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.configuration.nearest import nearest
from worker_vllm.configuration.report import Report

_ALIKE = 0.84
_ALIKE_WITHIN_PREFIX = 0.75


def check(environ: Mapping[str, str], table: ArgumentTable, report: Report) -> None:
    """Warn once of each variable in `environ` that looks like one of ours or vLLM's, with the nearest right
    name."""
    known = known_names(table)
    for name in sorted(environ):
        if name in known or values.is_unset(environ[name]):
            continue
        if name.startswith("VLLM_"):
            _check_prefixed(name, known, table, report)
        elif variables.SUBKEY in name:
            _check_subkey(name, table, report)
        elif name not in env_names.FOREIGN and not name.startswith(env_names.FOREIGN_PREFIXES):
            near = env_names.MISNOMERS.get(name) or _within(name, known) or nearest(name, known, _ALIKE)
            if near:
                report.warn(f"{name} is no setting; did you mean {near}?")


def known_names(table: ArgumentTable) -> frozenset[str]:
    """Every variable that means something, by itself, to this worker or to vLLM, or that is told of
    elsewhere."""
    found = {name for setting in settings.WorkerSettings.model_fields for name in settings.names(setting)}
    for argument in table.arguments:
        found.update((argument.variable, *argument.variables, *argument.inverse_variables))
    tables = (env_names.DENIED, env_names.SURROUNDINGS, env_names.REMOVED, env_names.FORM_NOISE)
    return frozenset(found).union(
        *tables, env_names.TRANSLATED, env_names.OWN, env_names.PLACES, table.environment
    )


def _check_prefixed(name: str, known: frozenset[str], table: ArgumentTable, report: Report) -> None:
    inner = name.removeprefix(env_names.ARGUMENT_PREFIX)
    if inner != name:
        base = inner.split(variables.SUBKEY)[0].lower()
        if base in table.by_name:
            return
        near = nearest(base, table.by_name)
        hint = f"; did you mean {env_names.ARGUMENT_PREFIX}{near.upper()}?" if near else ""
        report.warn(f"{name}: vLLM {table.version} has no argument {base}{hint}")
        return
    for prefix in ("VLLM_RUNPOD_", "VLLM_"):
        plain = name.removeprefix(prefix)
        if plain != name and plain in known:
            report.warn(f"{name} is no setting; did you mean {plain}?")
            return
    near = nearest(name, [other for other in known if other.startswith("VLLM_")], _ALIKE_WITHIN_PREFIX)
    report.warn(f"{name} is no setting of this worker or of vLLM{f'; did you mean {near}?' if near else ''}")


def _check_subkey(name: str, table: ArgumentTable, report: Report) -> None:
    base = name.split(variables.SUBKEY)[0].lower()
    argument = table.by_name.get(base)
    if argument is not None and not argument.kind.startswith("json"):
        report.warn(f"{name} is no setting: {argument.variable} is no object with keys")
    elif argument is None and (near := nearest(base, _objects(table), _ALIKE)):
        report.warn(f"{name} is no setting; did you mean {near.upper()}{name[len(base) :]}?")


def _objects(table: ArgumentTable) -> list[str]:
    return [argument.name for argument in table.arguments if argument.kind.startswith("json")]


def _within(name: str, known: frozenset[str]) -> str | None:
    """The one known name that holds all the words of `name`, in order: TENSOR_PARALLEL for
    TENSOR_PARALLEL_SIZE."""
    if name.count("_") < 1:
        return None
    holders = [other for other in known if f"_{name}_" in f"_{other}_" and not other.startswith("VLLM_")]
    return holders[0] if len(holders) == 1 else None
