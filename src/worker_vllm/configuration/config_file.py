"""The configuration file: vLLM's own YAML, with ${VARIABLE} replaced from the environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_vllm import values
from worker_vllm.configuration.arguments import ArgumentTable
from worker_vllm.configuration.given import Given
from worker_vllm.configuration.nearest import nearest
from worker_vllm.configuration.report import Report

VARIABLE = "VLLM_CONFIG_FILE"
DEFAULT_NAME = "vllm_config.yaml"
"""Read from the root of the file system if the variable names no other."""

# ${NAME}, ${NAME:-default} and $$ for a dollar sign; a bare $NAME stays, as templates have it
_REFERENCE = re.compile(r"\$\$|\$\{([A-Za-z_]\w*)(?::-([^}]*))?\}")


def read(environ: Mapping[str, str], table: ArgumentTable, root: Path, report: Report) -> dict[str, Given]:
    """What the configuration file says of vLLM's arguments, by name; nothing if there is no file."""
    named = None if values.is_unset(environ.get(VARIABLE)) else environ[VARIABLE].strip()
    try:
        path = Path(named) if named else root / DEFAULT_NAME
        if not named and not path.is_file():
            return {}
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        report.bad_value(VARIABLE, named or DEFAULT_NAME, f"cannot be read: {_reason(error)}")
        return {}
    return _read_keys(_parse(text, path, report), path, environ, table, report)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return "not a readable text file"


def _parse(text: str, path: Path, report: Report) -> dict[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        report.problem(f"{path.name}: not valid YAML{f' in line {mark.line + 1}' if mark else ''}")
        return {}
    if content is None:
        return {}
    if not isinstance(content, dict):
        report.problem(f"{path.name}: expected vLLM's arguments, one `name: value` a line")
        return {}
    return {str(key): value for key, value in content.items()}


def _read_keys(
    content: dict[str, Any], path: Path, environ: Mapping[str, str], table: ArgumentTable, report: Report
) -> dict[str, Given]:
    found: dict[str, Given] = {}
    for key, value in content.items():
        name = key.strip().removeprefix("--").replace("-", "_")
        where = f"{path.name}: {key}"
        flag = table.by_flag.get("--" + name.replace("_", "-"))
        if flag is None:
            near = nearest(name, table.by_name)
            hint = f"; did you mean {near}?" if near else ""
            report.warn(f"{where} is no argument of vLLM {table.version}{hint}")
            continue
        argument, positive = flag
        value = _substitute(value, where, environ, report)
        if values.is_unset(value):
            continue
        if not positive and isinstance(value, bool):
            value = not value
        found[argument.name] = Given(value, "file", where)
    return found


def _substitute(value: Any, where: str, environ: Mapping[str, str], report: Report) -> Any:
    if isinstance(value, dict):
        return {str(key): _substitute(item, where, environ, report) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, where, environ, report) for item in value]
    if not isinstance(value, str):
        return value if isinstance(value, bool | int | float | None) else str(value)

    def replace(match: re.Match[str]) -> str:
        name, default = match.groups()
        if name is None:
            return "$"
        text = environ.get(name) or default
        if text is None:
            report.problem(f"{where}: ${{{name}}} is not set; give it a value, or write ${{{name}:-default}}")
        return text or ""

    return _REFERENCE.sub(replace, value)
