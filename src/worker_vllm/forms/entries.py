"""One form entry for a setting, whichever form it is for: label, type, choices, default and help."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from worker_vllm import settings
from worker_vllm.configuration.arguments import Argument, ArgumentTable
from worker_vllm.forms.catalog import ENGINE_GROUPS, EXTRAS, WORKER_GROUPS, Group, Item

REQUIRED = "MODEL_NAME"
"""The one setting that everybody must choose: vLLM has a default there that nobody wants."""

_HELP_LENGTH = 280
_MANY_CHOICES = 100


@dataclass(frozen=True)
class Entry:
    """A setting as a form shows it.

    Attributes:
        variable: the environment variable.
        title: its label.
        type: how it is entered.
        help: what it does.
        choices: what can be picked; the empty text stands for "not chosen".
        default: what the form sends; None for nothing.
        own_default: what happens when nothing is sent.
        reason: why `default` differs from that.
    """

    variable: str
    title: str
    type: Literal["text", "number", "boolean", "choice"]
    help: str
    choices: tuple[str, ...] = ()
    default: str | int | float | bool | None = None
    own_default: Any = None
    reason: str | None = None


def groups(table: ArgumentTable) -> Iterator[tuple[str, list[Entry]]]:
    """Everything that is offered: the groups' titles with their entries. Arguments that `table` lacks are
    left out."""
    for group in ENGINE_GROUPS:
        yield (
            group.title,
            [
                _argument_entry(item, table.by_name[item.name], table)
                for item in group.items
                if item.name in table.by_name
            ],
        )
    for group in WORKER_GROUPS:
        yield group.title, _worker_entries(group)
    yield "Everything else", [Entry(variable, title, "text", text) for variable, title, text in EXTRAS]


def _worker_entries(group: Group) -> list[Entry]:
    return [_setting_entry(item) for item in group.items]


def _argument_entry(item: Item, argument: Argument, table: ArgumentTable) -> Entry:
    known = argument.suggestions or table.registries.get(argument.name, ())
    choices = tuple(map(str, argument.choices)) or item.suggestions or known
    kind: Literal["text", "number", "boolean", "choice"] = "text"
    if argument.kind == "bool":
        # vLLM decides for itself when nothing is said, and a switch cannot say nothing
        kind, choices = ("boolean", ()) if argument.default is not None else ("choice", ("true", "false"))
    elif choices and not argument.many:
        kind = "choice"
        choices = tuple(sorted(choices, key=str.lower)) if len(choices) > _MANY_CHOICES else choices
    elif argument.kind in ("int", "float") and not argument.many and not argument.suffixes:
        kind = "number"
    if kind == "choice" and str(argument.default) not in choices:
        choices = ("", *choices)
    return Entry(
        variable=argument.variables[0],
        title=item.title or argument.name,
        type=kind,
        help=item.help or first_sentences(argument.help),
        choices=choices,
        default=item.default,
        own_default=argument.default,
        reason=item.reason,
    )


def _setting_entry(item: Item) -> Entry:
    field = settings.WorkerSettings.model_fields[item.name]
    choices = settings.choices(item.name)
    kinds: dict[str, Literal["text", "number", "boolean", "choice"]] = {
        "bool": "boolean",
        "int": "number",
        "float": "number",
    }
    return Entry(
        variable=settings.names(item.name)[0],
        title=item.title or item.name,
        type="choice" if choices else kinds.get(settings.kind(item.name), "text"),
        help=str(field.description),
        choices=choices,
        default=item.default,
        own_default=field.default,
        reason=item.reason,
    )


def first_sentences(text: str, length: int = _HELP_LENGTH) -> str:
    """The first whole sentences of `text` that fit into `length` characters, without its Markdown; at least
    one."""
    plain = re.sub(r"\[([^\]]*)\](\([^)]*\)|\[\])", r"\1", text).replace("`", "").replace("**", "")
    plain, is_list, _ = plain.partition(" - ")
    if is_list:
        plain = plain.rstrip(" :") + "."
    sentences = re.split(r"(?<=[.!?])\s+", plain.strip())
    kept = sentences[0]
    for sentence in sentences[1:]:
        if len(kept) + 1 + len(sentence) > length:
            break
        kept += f" {sentence}"
    return kept
