"""vLLM's own argument parser, read into a table and used on a configuration.

Only `vllm_compat.load` imports; importing vLLM this far takes about ten seconds of CPU, so a table is kept and used
again while vLLM's sources are the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import inspect
import json
from argparse import Namespace
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from worker_vllm import errors, vllm_compat
from worker_vllm.configuration.arguments import Argument, ArgumentTable

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration

# how the server process is run, which is this worker's own affair
_NOT_ARGUMENTS = frozenset({"help", "model_tag", "config", "headless", "grpc", "api_server_count"})

_OPTIONAL_WRAPPERS = frozenset({"_optional_type"})
_JSON_READERS = frozenset({"loads", "parse_dataclass"})


def make_parser() -> Any:
    """The parser of `vllm serve`, which raises ValueError where argparse would end the process."""
    base: Any = vllm_compat.load("FlexibleArgumentParser")

    class Parser(base):
        def error(self, message: str) -> Any:
            raise ValueError(message)

    return vllm_compat.load("make_arg_parser")(Parser(prog="vllm", add_help=False))


def read_table() -> ArgumentTable:
    """The table of the installed vLLM. Imports vLLM."""
    parser = make_parser()
    engine_fields = {field.name for field in dataclasses.fields(vllm_compat.load("AsyncEngineArgs"))}
    documented = {**_documentation("FrontendArgs"), **_documentation("AsyncEngineArgs")}
    actions: dict[str, Any] = {}
    for action in parser._actions:
        if action.dest not in _NOT_ARGUMENTS and action.option_strings:
            actions.setdefault(action.dest, action)
    flags: dict[str, list[str]] = {}
    for flag, action in parser._option_string_actions.items():
        flags.setdefault(action.dest, []).append(flag)
    return ArgumentTable(
        version=vllm_compat.versions()["vllm"],
        arguments=tuple(
            _read_argument(parser, action, flags[name], name in engine_fields, documented.get(name, ""))
            for name, action in actions.items()
        ),
        registries=_read_registries(),
    )


def _read_argument(parser: Any, action: Any, flags: list[str], engine: bool, help_text: str) -> Argument:
    convert, nullable = _unwrap(action.type)
    reader = getattr(convert, "__name__", "str") if convert is not None else "str"
    is_bool = action.nargs == 0
    negative = [flag for flag in flags if is_bool and not getattr(parser.parse_args([flag]), action.dest)]
    json_list = reader == "loads" and isinstance(action.default, list)
    keys, required = _dataclass_keys(convert)
    return Argument(
        name=action.dest,
        home="engine" if engine else "frontend",
        kind="bool" if is_bool else "text" if json_list else _kind(reader),
        many=action.nargs == "+" or isinstance(action, argparse._AppendAction) or json_list,
        nullable=nullable or action.default is None,
        suffixes=reader.startswith("human_readable_int"),
        auto=reader == "human_readable_int_or_auto",
        choices=tuple(choice for choice in action.choices or () if choice is not None),
        lowered=bool(action.choices) and reader == "<lambda>",
        keys=keys,
        required=required,
        flags=tuple(flag for flag in flags if flag not in negative),
        negative_flags=tuple(negative),
        default=_plain(parser.get_default(action.dest)),
        help=" ".join((help_text or action.help or "").replace("%%", "%").split()),
    )


def _kind(reader: str) -> Any:
    if reader in ("int", "float"):
        return reader
    if reader.startswith("human_readable_int"):
        return "int"
    if reader in _JSON_READERS:
        return "json"
    return "json_or_text" if reader == "union_dict_and_str" else "text"


def _unwrap(convert: Callable[..., Any] | None) -> tuple[Callable[..., Any] | None, bool]:
    """The reader inside vLLM's wrappers, and whether one of them lets None through."""
    nullable = False
    while getattr(convert, "__name__", "") in ("_optional_type", "_parse_type"):
        nullable |= getattr(convert, "__name__", "") in _OPTIONAL_WRAPPERS
        convert = inspect.getclosurevars(convert).nonlocals["return_type"]  # type: ignore[arg-type]
    return convert, nullable


def _dataclass_keys(convert: Callable[..., Any] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if getattr(convert, "__name__", "") != "parse_dataclass":
        return (), ()
    cls: Any = inspect.signature(convert).parameters["cls"].default  # type: ignore[arg-type]
    fields = [field for field in dataclasses.fields(cls) if field.init]
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return tuple(field.name for field in fields), tuple(required)


def _documentation(name: str) -> dict[str, str]:
    """Field name to docstring, for one of vLLM's argument classes and the config classes it takes its fields from."""
    cls = vllm_compat.load(name)
    read: Any = vllm_compat.load("get_attr_docs")
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        found |= read(base)
    return found


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if dataclasses.is_dataclass(value) or value is argparse.SUPPRESS:
        return None
    if isinstance(value, set | frozenset | tuple):
        value = sorted(value, key=str)
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        return None


def _read_registries() -> dict[str, tuple[str, ...]]:
    return {
        "tool_call_parser": tuple(vllm_compat.load("ToolParserManager").list_registered()),
        "reasoning_parser": tuple(vllm_compat.load("ReasoningParserManager").list_registered()),
        "quantization": tuple(vllm_compat.load("QUANTIZATION_METHODS")),
    }


def namespace(configuration: Configuration) -> Namespace:
    """See `vllm_compat.namespace`.

    Raises:
        ConfigurationError: naming every argument that vLLM's own parsing refuses.
    """
    parser = make_parser()
    args = parser.parse_args([])
    actions = {action.dest: action for action in parser._actions}
    problems: list[str] = []
    for name, effective in {**configuration.engine, **configuration.frontend}.items():
        try:
            setattr(args, name, _typed(parser, actions[name], effective.value))
        except ValueError as error:
            problems.append(f"{effective.variable or name}: {error}")
    if problems:
        raise errors.ConfigurationError(problems)
    args.model_tag = args.model
    return args


def _typed(parser: Any, action: Any, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    texts = (
        [_text(item) for item in value] if isinstance(value, list) and action.nargs == "+" else [_text(value)]
    )
    # one argument at a time, so that every problem is found; "=" keeps a value with a leading hyphen a value
    flag = action.option_strings[0]
    words = [f"{flag}={texts[0]}"] if len(texts) == 1 else [flag, *texts]
    return getattr(parser.parse_args(words), action.dest)


def _text(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list | bool) else str(value)
