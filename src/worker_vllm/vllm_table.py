"""vLLM's arguments as a table: read from the installed version's parser and dataclasses, or from a record
of that.
 Importing vLLM as far as its parser takes ten seconds of CPU and more, so the record of the default version
lies in this package. It counts only while a digest of vLLM's own sources says that reading anew would give
the same.
"""

from __future__ import annotations

import argparse
import dataclasses
import enum
import hashlib
import inspect
import json
import sys
import typing
from collections.abc import Callable
from functools import cache
from importlib import metadata, resources, util
from pathlib import Path
from typing import Any

from worker_vllm import errors, installed, vllm_compat
from worker_vllm.configuration.arguments import Argument, ArgumentTable

RECORDS = "vllm_fields"
"""The folder of this package with records, one file a version."""

# where a file of vLLM's could change what its parser takes
_SOURCES = (
    "engine/arg_utils.py",
    "config/**/*.py",
    "entrypoints/**/cli_args.py",
    "envs.py",
    "model_executor/layers/quantization/__init__.py",
    "model_executor/model_loader/__init__.py",
    "reasoning/__init__.py",
    "tool_parsers/__init__.py",
    "utils/argparse_utils.py",
    "v1/attention/backends/registry.py",
)
_PLUGIN_GROUPS = ("vllm.general_plugins", "vllm.platform_plugins")

# how the server process is run, which is this worker's own affair
_NOT_ARGUMENTS = frozenset({"help", "model_tag", "config", "headless", "grpc", "api_server_count"})

_JSON_READERS = frozenset({"loads", "parse_dataclass"})


def installed_table() -> ArgumentTable:
    """The installed vLLM's table: from the record if that fits, else read, which imports vLLM.

    Raises:
        EngineStartError: there is no vLLM.
    """
    if util.find_spec("vllm") is None:
        raise errors.EngineStartError("vLLM is not installed")
    release = (installed.vllm_version() or "").partition("+")[0]
    record = resources.files("worker_vllm").joinpath(RECORDS, f"{release}.json")
    if record.is_file():
        table = ArgumentTable.model_validate_json(record.read_bytes())
        if table.fingerprint == fingerprint():
            return table
    return read_table()


def fingerprint() -> str:
    """A digest of the sources that decide what vLLM's parser takes, and of the plugins that may add to it."""
    digest = hashlib.sha256()
    spec = util.find_spec("vllm")
    root = Path(spec.origin).parent if spec and spec.origin else Path()
    for path in sorted({path for pattern in _SOURCES for path in root.glob(pattern)}):
        digest.update(f"{path.relative_to(root)}\n".encode())
        digest.update(path.read_bytes())
    points = {
        (group, p.name, p.value) for group in _PLUGIN_GROUPS for p in metadata.entry_points(group=group)
    }
    digest.update(repr(sorted(points)).encode())
    return digest.hexdigest()


@cache
def read_table() -> ArgumentTable:
    """The installed vLLM's table, read from its own parser, dataclasses and registries. Imports vLLM."""
    # vLLM leaves its help texts out unless the command line asks for them, and looks at this flag
    sys.modules[vllm_compat.load("AsyncEngineArgs").__module__].__dict__["NEEDS_HELP"] = True
    parser = make_parser()
    engine_fields = {field.name for field in dataclasses.fields(vllm_compat.load("AsyncEngineArgs"))}
    actions: dict[str, Any] = {}
    flags: dict[str, list[str]] = {}
    for flag, action in parser._option_string_actions.items():
        if action.dest not in _NOT_ARGUMENTS:
            actions.setdefault(action.dest, action)
            flags.setdefault(action.dest, []).append(flag)
    return ArgumentTable(
        version=installed.vllm_version() or "",
        fingerprint=fingerprint(),
        arguments=tuple(
            _read_argument(parser, action, flags[name], name in engine_fields)
            for name, action in actions.items()
        ),
        registries=_read_registries(actions),
        environment=tuple(sorted(vllm_compat.load("environment_variables"))),
    )


def make_parser() -> Any:
    """The parser of `vllm serve`, which raises ValueError where argparse would end the process."""
    base: Any = vllm_compat.load("FlexibleArgumentParser")

    class Parser(base):
        def error(self, message: str) -> Any:
            raise ValueError(message)

    return vllm_compat.load("make_arg_parser")(Parser(prog="vllm", add_help=False))


def _read_argument(parser: Any, action: Any, flags: list[str], engine: bool) -> Argument:
    convert, nullable = _unwrap(action.type)
    reader = "str" if convert is None else getattr(convert, "__name__", "str")
    is_bool = action.nargs == 0
    json_list = reader == "loads" and isinstance(action.default, list)
    negative = [flag for flag in flags if is_bool and not getattr(parser.parse_args([flag]), action.dest)]
    keys, required = _dataclass_keys(convert)
    return Argument(
        name=action.dest,
        home="engine" if engine else "frontend",
        kind="bool" if is_bool else "text" if json_list else _kind(reader),
        many=action.nargs == "+" or isinstance(action, argparse._AppendAction) or json_list,
        nullable=nullable or action.default is None,
        suffixes=reader.startswith("human_readable_int"),
        auto=reader == "human_readable_int_or_auto",
        choices=tuple(choice for choice in action.choices or () if choice not in (None, "None")),
        suggestions=_suggestions(action),
        lowered=bool(action.choices) and reader == "<lambda>",
        keys=keys,
        required=required,
        flags=tuple(flag for flag in flags if flag not in negative),
        negative_flags=tuple(negative),
        default=_plain(parser.get_default(action.dest)),
        help=_help(action.help or ""),
    )


def _suggestions(action: Any) -> tuple[str, ...]:
    # vLLM gives the parser a list in place of a metavar where other words are allowed too
    return tuple(str(word) for word in action.metavar) if isinstance(action.metavar, list) else ()


def _help(text: str) -> str:
    # what follows is about the command line, the same for many arguments, or a link
    for tail in ("\n\nShould either be a valid JSON", "\n\nAPI docs:", "\n\nParse human-readable integers"):
        text = text.partition(tail)[0]
    return " ".join(text.replace("%%", "%").split())


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
    while (name := getattr(convert, "__name__", "")) in ("_optional_type", "_parse_type"):
        nullable |= name == "_optional_type"
        convert = inspect.getclosurevars(convert).nonlocals["return_type"]  # type: ignore[arg-type]
    return convert, nullable


def _dataclass_keys(convert: Callable[..., Any] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if convert is None or getattr(convert, "__name__", "") != "parse_dataclass":
        return (), ()
    return _field_names(inspect.signature(convert).parameters["cls"].default)


def _field_names(cls: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a dataclass's fields, and of those among them that have no default."""
    fields = [field for field in dataclasses.fields(cls) if field.init]
    required = [
        field.name
        for field in fields
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return tuple(field.name for field in fields), tuple(required)


def _plain(value: Any) -> Any:
    if isinstance(value, enum.Enum):
        value = value.value
    if value is argparse.SUPPRESS:
        return None
    if isinstance(value, set | frozenset | tuple):
        value = sorted(value, key=str)
    try:
        return json.loads(json.dumps(value))
    except (TypeError, ValueError):
        # a config object: every field at its own default
        return None


def _read_registries(actions: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    backends = tuple(vllm_compat.load("AttentionBackendEnum").__members__)
    methods = actions.get("spec_method")
    modes = {*vllm_compat.load("TokenizerRegistry").tokenizers, *_suggestions(actions["tokenizer_mode"])}
    return {
        "tokenizer_mode": tuple(sorted(modes)),
        "tool_call_parser": tuple(vllm_compat.load("ToolParserManager").list_registered()),
        "reasoning_parser": tuple(vllm_compat.load("ReasoningParserManager").list_registered()),
        "quantization": tuple(vllm_compat.load("QUANTIZATION_METHODS")),
        "load_format": tuple(typing.get_args(vllm_compat.load("LoadFormats"))),
        "attention_backend": backends,
        "mm_encoder_attn_backend": backends,
        "spec_method": tuple(str(name) for name in (methods.choices if methods else ()) if name),
        "speculative_config": _field_names(vllm_compat.load("SpeculativeConfig"))[0],
    }
