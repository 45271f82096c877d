"""Raw values to plain typed ones, argument by argument, with the rules that only configurations from forms
need."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from worker_vllm import values
from worker_vllm.configuration import variables
from worker_vllm.configuration.arguments import Argument, ArgumentTable
from worker_vllm.configuration.given import Given
from worker_vllm.configuration.report import Report
from worker_vllm.configuration.secrets import SECRET_ARGUMENTS
from worker_vllm.env_names import FORM_DEFAULTS, ZERO_MEANS_UNSET
from worker_vllm.settings import Effective

# name=path, or one JSON object; vLLM's command line has them with blanks between
_ADAPTER_WORD = re.compile(r"\{[^{}]*\}|[^\s,{}]+")


def read(
    given: Mapping[str, Given], environ: Mapping[str, str], table: ArgumentTable, report: Report
) -> dict[str, Effective]:
    """The arguments that somebody chose, typed, by name. What cannot be read is a problem in `report`."""
    chosen: dict[str, Effective] = {}
    ignored: list[str] = []
    for argument in table.arguments:
        raw = given.get(argument.name)
        if raw is None:
            continue
        try:
            value = _read_one(argument, raw.raw)
        except ValueError as error:
            report.bad_value(raw.variable, _hidden(argument, raw.raw), error)
            continue
        if value == 0 and not isinstance(value, bool) and argument.name in ZERO_MEANS_UNSET:
            continue
        if raw.source == "environment" and not raw.meant and _is_form_default(argument, value):
            ignored.append(f"{raw.variable}={values.shown(raw.raw)[1:-1]}")
            continue
        chosen[argument.name] = _effective(argument, value, raw)
    if ignored:
        report.warn(
            f"not chosen, because the old forms sent the same for everybody: {', '.join(ignored)} "
            f"(VLLM_ARG_{ignored[0].partition('=')[0]} would be)"
        )
    _merge_subkeys(chosen, environ, table, report)
    return chosen


def _effective(argument: Argument, value: Any, given: Given) -> Effective:
    return Effective(value, given.source, given.variable, secret=argument.name in SECRET_ARGUMENTS)


def _hidden(argument: Argument, raw: object) -> object:
    return "***" if argument.name in SECRET_ARGUMENTS else raw


def _is_form_default(argument: Argument, value: Any) -> bool:
    same, _ = FORM_DEFAULTS.get(argument.name, ((), ""))
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in same)


def _read_one(argument: Argument, raw: object) -> Any:
    special = _SPECIAL.get(argument.name)
    return special(argument, raw) if special else argument.read(raw)


def _read_token(argument: Argument, raw: object) -> Any:
    # vLLM's --hf-token stands alone for "the token that the hub library has saved"
    return True if str(raw).strip().lower() == "true" else str(raw).strip()


def _read_adapters(argument: Argument, raw: object) -> list[Any]:
    """LORA_MODULES: a JSON list, one JSON object, or words name=path with blanks or commas between them.

    vLLM's own parser takes a word or an object an adapter, and ends the process on a list.
    """
    if isinstance(raw, str):
        text = raw.strip()
        words = _ADAPTER_WORD.findall(text)
        is_json = text[:1] == "[" or (text[:1] == "{" and len(words) == 1)
        raw = values.read_json(text) if is_json else words
    if isinstance(raw, dict) and "path" not in raw and raw and all(isinstance(v, str) for v in raw.values()):
        raw = [{"name": name, "path": path} for name, path in raw.items()]
    entries = raw if isinstance(raw, list) else [raw]
    return [_read_adapter(entry) for entry in entries]


def _read_adapter(entry: object) -> dict[str, Any]:
    if isinstance(entry, str) and entry.lstrip()[:1] == "{":
        entry = values.read_json(entry)
    if isinstance(entry, str) and "=" in entry:
        name, _, path = entry.partition("=")
        entry = {"name": name.strip(), "path": path.strip()}
    if not isinstance(entry, dict):
        raise ValueError('expected name=path, {"name": …, "path": …}, or a list of them')
    for key in ("name", "path"):
        if not isinstance(entry.get(key), str) or not entry[key]:
            raise ValueError(f'an adapter lacks its {key}: expected {{"name": …, "path": …}}')
    return {str(key): value for key, value in entry.items()}


def _read_limits(argument: Argument, raw: object) -> dict[str, Any]:
    """LIMIT_MM_PER_PROMPT: JSON, or image=1,video=0."""
    limits = values.read_mapping(raw)
    for modality, limit in limits.items():
        if isinstance(limit, dict):
            continue
        try:
            limits[modality] = values.read_int(limit)
        except ValueError:
            raise ValueError('expected a number for each kind: {"image": 2} or image=2,video=0') from None
    return limits


def _read_compilation(argument: Argument, raw: object) -> dict[str, Any]:
    """COMPILATION_CONFIG: an object, or vLLM's former bare level."""
    try:
        level = values.read_int(raw)
    except ValueError:
        return argument.read(raw)
    return argument.check_keys({"mode": level})


_SPECIAL = {
    "hf_token": _read_token,
    "lora_modules": _read_adapters,
    "limit_mm_per_prompt": _read_limits,
    "compilation_config": _read_compilation,
}


def _merge_subkeys(
    chosen: dict[str, Effective], environ: Mapping[str, str], table: ArgumentTable, report: Report
) -> None:
    keyed = {name: text for name, text in environ.items() if variables.SUBKEY in name}
    for argument in table.arguments if keyed else ():
        found = variables.subkeys(keyed, argument)
        if not found:
            continue
        before = chosen.get(argument.name)
        if before is not None and not isinstance(before.value, dict):
            report.problem(f"{next(iter(found))}: {before.variable} is no object that keys could be added to")
            continue
        if before is not None and before.source == "extra_args":
            report.warn(f"{', '.join(found)}: not used, because VLLM_EXTRA_ARGS sets the whole")
            continue
        merged: dict[str, Any] = json.loads(json.dumps(before.value)) if before else {}
        for variable, text in found.items():
            try:
                _put(merged, argument, variable.split(variables.SUBKEY)[1:], values.read_scalar(text))
            except ValueError as error:
                report.bad_value(variable, text, error)
        chosen[argument.name] = Effective(merged, "environment", next(iter(found)))


def _put(target: dict[str, Any], argument: Argument, path: list[str], value: Any) -> None:
    if not all(path):
        raise ValueError("a key is missing between the underscores")
    # forms and shells write variables in capitals; vLLM's keys are in small letters
    path = [part.lower() if part.isupper() else part for part in path]
    argument.check_keys({path[0]: value}, whole=False)
    for part in path[:-1]:
        inner = target.setdefault(part, {})
        if not isinstance(inner, dict):
            raise ValueError(f"{part} is no object")
        target = inner
    target[path[-1]] = value
