"""A model's chat template: where it stands, and whether it parses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

FILES = ("chat_template.jinja", "chat_template.json")
"""A template in a file of its own; the second is a processor's, with the key chat_template."""

_DEFAULT = "default"


def find(
    files: Mapping[str, int],
    tokenizer_config: Mapping[str, Any],
    read_text: Callable[[str], str | None],
    read_json: Callable[[str], Mapping[str, Any]],
) -> str | None:
    """The default chat template's text, in the order in which transformers looks; None where there is none.

    Args:
        files: what lies beside the tokenizer.
        read_text, read_json: read one of these files; None and an empty mapping where it cannot be had.
    """
    jinja, processor = FILES
    if jinja in files and (text := read_text(jinja)) is not None:
        return text
    if processor in files and isinstance(text := read_json(processor).get("chat_template"), str):
        return text
    return _in_config(tokenizer_config.get("chat_template"))


def _in_config(found: Any) -> str | None:
    if isinstance(found, str):
        return found
    if isinstance(found, list):  # several, each with its name
        named = {
            item["name"]: item["template"]
            for item in found
            if isinstance(item, dict) and "name" in item and isinstance(item.get("template"), str)
        }
        return named.get(_DEFAULT)
    return None


def problem(template: str) -> str | None:
    """Why `template` cannot be parsed, in one line; None where it can. Nothing of it is run."""
    from jinja2 import TemplateSyntaxError, nodes
    from jinja2.ext import Extension
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The block with which transformers marks what the assistant says; a body like any other here."""

        tags = {"generation"}  # noqa: RUF012 - as jinja2 wants it

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return nodes.Scope(
                parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line
            )

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    try:
        environment.parse(template)
    except TemplateSyntaxError as error:
        return f"line {error.lineno}: {' '.join((error.message or 'a syntax error').split())}"
    except RecursionError:
        return "nested too deep"
    return None
