"""A configuration, as vLLM's own argument parser understands it."""

from __future__ import annotations

import json
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from worker_vllm import errors, values, vllm_table
from worker_vllm.configuration.secrets import Redactor

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration


def namespace(configuration: Configuration) -> Namespace:
    """See `vllm_compat.namespace`."""
    parser = vllm_table.make_parser()
    args = parser.parse_args([])
    actions = {action.dest: action for action in parser._actions}
    chosen = configuration.chosen()
    redactor = Redactor({}, (effective.value for effective in chosen.values() if effective.secret))
    problems: list[str] = []
    for name, effective in chosen.items():
        if effective.secret:
            # the hub library finds the token in HF_TOKEN, and a key would guard a port that does not exist
            continue
        try:
            setattr(args, name, _typed(parser, actions[name], effective.value))
        except ValueError as error:
            shown = values.shown(effective.shown())
            problems.append(redactor.text(f"{effective.variable or name}={shown}: {_reason(error)}"))
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


def _reason(error: ValueError) -> str:
    # argparse begins with the flag: "argument --max-model-len: invalid ... value"
    return " ".join(str(error).split(": ", 1)[-1].split())[:300]
