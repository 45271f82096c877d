"""Environment variables to arguments: which names count, and which of several wins."""

from __future__ import annotations

from collections.abc import Mapping

from worker_vllm import values
from worker_vllm.configuration.arguments import Argument, ArgumentTable
from worker_vllm.configuration.given import Given
from worker_vllm.configuration.report import Report
from worker_vllm.env_names import ARGUMENT_PREFIX, DENIED, FORM_NOISE, REMOVED

SUBKEY = "__"
"""NAME__key sets one key of an object; NAME__key__inner one of an object inside."""


def read(environ: Mapping[str, str], table: ArgumentTable, report: Report) -> dict[str, Given]:
    """What the environment says of vLLM's arguments, by name. Names that are not read are told to
    `report`."""
    found: dict[str, Given] = {}
    for argument in table.arguments:
        prefixed = ARGUMENT_PREFIX + argument.variable
        candidates = [
            name for name in (prefixed, *argument.variables) if not values.is_unset(environ.get(name))
        ]
        if not candidates:
            continue
        found[argument.name] = Given(
            environ[candidates[0]], "environment", candidates[0], meant=candidates[0] == prefixed
        )
        for other in candidates[1:]:
            if environ[other].strip() != environ[candidates[0]].strip():
                report.warn(f"{other} is not used, because {candidates[0]} is set too")
    _read_inverses(environ, table, found)
    _tell_unread(environ, table, report)
    return found


def subkeys(environ: Mapping[str, str], argument: Argument) -> dict[str, str]:
    """Variables of the form NAME__key that are set, for an argument that is an object: variable to its
    text."""
    if not argument.kind.startswith("json"):
        return {}
    prefixes = tuple(name + SUBKEY for name in (argument.variable, ARGUMENT_PREFIX + argument.variable))
    return {
        name: text
        for name, text in environ.items()
        if name.startswith(prefixes) and not values.is_unset(text) and len(name.split(SUBKEY, 1)[1])
    }


def _read_inverses(environ: Mapping[str, str], table: ArgumentTable, found: dict[str, Given]) -> None:
    for argument in table.arguments:
        for name in argument.inverse_variables:
            if argument.name in found or values.is_unset(environ.get(name)):
                continue
            try:
                found[argument.name] = Given(not values.read_bool(environ[name]), "environment", name)
            except ValueError:
                found[argument.name] = Given(environ[name], "environment", name)


def _tell_unread(environ: Mapping[str, str], table: ArgumentTable, report: Report) -> None:
    given = {name for name, text in environ.items() if not values.is_unset(text)}
    known = {argument.variable for argument in table.arguments}
    denied = sorted(given & DENIED.keys() & known)
    if denied:
        report.warn(
            f"not read as arguments of vLLM, because other software uses such names: {', '.join(denied)} "
            f"({ARGUMENT_PREFIX}{denied[0]} would be)"
        )
    for name in sorted(given & REMOVED.keys() - known):
        report.warn(f"{name} has no effect: {REMOVED[name]}")
    noise = sorted(given & FORM_NOISE - known)
    if noise:
        report.warn(f"settings of old forms that mean nothing to vLLM {table.version}: {', '.join(noise)}")
