"""A configuration, as vLLM's own parser and config classes understand it: the two layers that need vLLM
itself."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from worker_vllm import errors, values, vllm_compat, vllm_table

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration
    from worker_vllm.settings import Effective

# what vLLM raises for values that it refuses; pydantic's ValidationError is a ValueError
_REFUSALS = (ValueError, TypeError, NotImplementedError, AssertionError)
_MESSAGE_LENGTH = 400

CHOSEN = "worker_chosen"
"""The attribute of a namespace that holds what was chosen, by argument; vLLM does not look at it."""

_SHORT_WORD = 2
# these words stand in most of vLLM's messages, whatever is wrong
_COMMON_NAMES = frozenset({"model", "served_model_name", "tokenizer", "runner", "convert"})
_PYDANTIC_TAIL = re.compile(r"\s*\[type=.*?(?=$|\s\w+\n)|\s*For further information visit \S+", re.DOTALL)


def namespace(configuration: Configuration) -> Namespace:
    """See `vllm_compat.namespace`."""
    try:
        parser = vllm_table.make_parser()
        args = parser.parse_args([])
    except ValueError as error:
        names = ", ".join(configuration.passed_through)
        raise errors.ConfigurationError(
            [f"vLLM cannot be loaded with its variables {names}: {error}"]
        ) from error
    actions = {action.dest: action for action in parser._actions}
    chosen = configuration.chosen()
    problems = list(_bad_variables(configuration))
    for name, effective in chosen.items():
        if effective.secret:
            # the hub library finds the token in HF_TOKEN, and a key would guard a port that does not exist
            continue
        try:
            setattr(args, name, _typed(parser, actions[name], effective.value))
        except ValueError as error:
            shown = values.shown(effective.value)
            problems.append(f"{effective.variable or name}={shown}: {_parser_message(error)}")
    if problems:
        raise errors.ConfigurationError([configuration.redactor.text(problem) for problem in problems])
    args.model_tag = args.model
    setattr(args, CHOSEN, chosen)
    return args


def check_engine_config(args: Namespace) -> tuple[Any, Any]:
    """Let vLLM put its engine's configuration together, as `vllm serve` does, without starting an engine.

    Returns:
        vLLM's engine arguments and the VllmConfig made of them.

    Raises:
        ConfigurationError: vLLM refuses the combination, for this model or this machine.
        OSError, RuntimeError: the model's files cannot be had, or the machine lacks something.
    """
    try:
        engine_args = vllm_compat.load("AsyncEngineArgs").from_cli_args(args)
        if propagate := vllm_compat.load("propagate_flash_late_interaction"):
            propagate(args, engine_args)
        # any other context has no tuned batch sizes and falls back to 2048 tokens and 128 sequences
        context = vllm_compat.load("UsageContext").OPENAI_API_SERVER
        return engine_args, engine_args.create_engine_config(usage_context=context)
    except _refusals() as error:
        if (obstacle := _obstacle(error)) is not None:
            raise obstacle from error
        raise errors.ConfigurationError([explain(error, getattr(args, CHOSEN, {}))]) from error


def _refusals() -> tuple[type[Exception], ...]:
    """What vLLM raises for values that it refuses, and what the hub library's strict configurations do."""
    strict = vllm_compat.load("StrictDataclassError")
    return (*_REFUSALS, strict) if strict else _REFUSALS


def _obstacle(error: BaseException | None) -> OSError | None:
    """The missing file or the failed request that vLLM wrapped into a refusal: that is no fault of the
    settings."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, OSError):
            return error
        details = error.errors() if isinstance(error, ValidationError) else ()
        inner = next((detail["ctx"]["error"] for detail in details if "error" in detail.get("ctx", {})), None)
        error = inner or error.__cause__ or error.__context__
    return None


def explain(error: Exception, chosen: Mapping[str, Effective]) -> str:
    """What vLLM says is wrong, in one line, with the variables that set what it speaks of.

    Args:
        chosen: what was chosen, by argument.
    """
    if isinstance(error, ValidationError):
        # one entry a fault; pydantic's own text would repeat the whole input, secrets and all
        message = "; ".join(map(_pydantic_message, error.errors(include_input=False)))
    else:
        message = str(error) or type(error).__name__
    message = " ".join(message.split())[:_MESSAGE_LENGTH]
    set_by = {name: effective.variable for name, effective in chosen.items() if effective.variable}
    spoken_of = {set_by[name] for name in set_by if _speaks_of(message, name, chosen[name].value)}
    if spoken_of:
        return f"{message} (set by {', '.join(sorted(spoken_of))})"
    return f"{message} (set here: {', '.join(sorted(set(set_by.values())))})" if set_by else message


def _speaks_of(message: str, name: str, value: Any) -> bool:
    """Whether vLLM's message is about the argument `name`: it has its name, its value, or a key of that."""
    candidates = value if isinstance(value, dict) else [value]
    words = {word for word in candidates if isinstance(word, str) and len(word) > _SHORT_WORD}
    if name not in _COMMON_NAMES:
        words |= {name, name.replace("_", "-"), name.replace("_", " ")}
    return any(re.search(rf"(?<!\w)(?<!\w-){re.escape(word)}(?![\w-])", message) for word in words)


def _pydantic_message(detail: Any) -> str:
    where = ".".join(str(part) for part in detail.get("loc", ()))
    message = str(detail.get("msg", "")).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    return f"{where}: {message}" if where else message


def _bad_variables(configuration: Configuration) -> Iterator[str]:
    """What vLLM cannot read of its own VLLM_ variables; it would say so with a traceback, at some later
    moment."""
    readers = vllm_compat.load("environment_variables")
    for name in configuration.passed_through:
        try:
            readers[name]()
        except _REFUSALS as error:
            yield f"{name}: {error}"


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


def _parser_message(error: ValueError) -> str:
    # argparse begins with the flag, "argument --seed: invalid …", and pydantic ends with its own affairs
    message = _PYDANTIC_TAIL.sub("", str(error).split(": ", 1)[-1])
    return " ".join(message.split())[:_MESSAGE_LENGTH]
