"""Grammars as vLLM takes them, EBNF (`root ::= …`) and Lark (`start: …`), read into rules.

Tolerant: only what a judgement of `grammar_ways` needs is read. vLLM takes for Lark what has no line with
`::=` (vllm/v1/structured_output/utils.py, 0.32); the forms are those of xgrammar's lexers (its
cpp/grammar_parser.cc and cpp/lark_converter.cc, August 2026).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from worker_vllm.regex_ways import Places, read_pattern

_STRING = r'"(?:[^"\\\n]|\\.)*"'
_REGEX = r"/(?![/*])(?:[^/\\]|\\.)+/"
_ATTRIBUTES = rf"\[(?:{_STRING}|{_REGEX}|[^\]\"/\n]){{0,200}}\]"
_BOUNDS = r"\{\s*\d+\s*(?:,\s*(?:-1|\d*)\s*)?\}"
_EBNF = re.compile(
    rf"(?P<skip>\s+|\#[^\n]*)|(?P<head>[A-Za-z_.-][\w.-]*(?:{_ATTRIBUTES})?\s*::=)|(?P<text>{_STRING})"
    rf"|(?P<pattern>\[(?:[^\]\\]|\\.)*\])|(?P<many>[*+?]|{_BOUNDS})|(?P<sign>\(=|[()|])"
    rf"|Regex\s*\(\s*(?P<quoted>{_STRING})[^()]*\)"
    rf"|(?P<free>(?:TagDispatch|TokenTagDispatch)\s*(?=\())|(?P<closed>(?:Token|ExcludeToken|Substring)\s*(?=\())"
    r"|(?P<name>[A-Za-z_.-][\w.-]*)",
    re.S,
)
_LARK = re.compile(
    r"(?P<skip>\s+|//[^\n]*|\#[^\n]*|->\s*[\w-]+|%(?:import|declare)[^\n]*|%lark\b)|(?P<ignore>%ignore\b)"
    rf"|(?P<brace>(?!{_BOUNDS})[{{}}])"
    rf"|(?P<head>[?!]?[A-Za-z_][\w-]*(?:\.-?\d+)?\s*(?:{_ATTRIBUTES}\s*)?:)"
    rf"|(?P<range>{_STRING}\s*\.\.\s*{_STRING})|(?P<text>{_STRING})i?|/(?P<pattern>(?![/*])(?:[^/\\]|\\.)+)/\w*"
    rf"|(?P<many>[*+?]|~\s*\d+(?:\s*\.\.\s*\d+)?|{_BOUNDS})|(?P<sign>[()|\[\]])"
    r"|(?P<json>%(?:json|regex|grammar_options)\s*)|(?P<closed>@[\w-]+|<[^>\s]*>|[&,]|%\w+)|(?P<not>~)"
    r"|(?P<name>[A-Za-z_][\w-]*)",
    re.S,
)
_ANYTHING = r"[\s\S]*"
_CLOSING = {"(": ")", "(=": ")", "[": "]"}
_CODES = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|u\{([0-9A-Fa-f]{1,6})\})")
_PLAIN = {"n": "\n", "t": "\t", "r": "\r"}

_IMPORT = re.compile(
    r"^[ \t]*%import[ \t]+common(?:\.(\w+)(?:[ \t]*->[ \t]*(\w+))?|[ \t]*\(([\w, \t]+)\))", re.M
)
_COMMON = {
    "WS": r"[ \t\f\r\n]+",
    "WS_INLINE": r"[ \t]+",
    "NEWLINE": r"(\r?\n)+",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z0-9_]*",
    "ESCAPED_STRING": r'"([^"\\]|\\.)*"',
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "SQL_COMMENT": r"--[^\n]*",
    "C_COMMENT": r"/\*[^*]*\*+(?:[^/*][^*]*\*+)*/",
}
"""What Lark's library calls so; the rest of it repeats nothing but digits."""

_Token = tuple[str, str]
Kind = Literal["text", "pattern", "name", "sequence", "either", "many", "closed"]


@dataclass(frozen=True)
class Node:
    """A part of a rule. `text` is what a "text" takes, a "pattern"'s regular expression or the rule that a
    "name" names; a "many" has one part and a rule's name of its own; "closed" takes what cannot be told."""

    kind: Kind
    text: str = ""
    parts: tuple[Node, ...] = ()
    least: int = 1
    most: int | None = 1
    nullable: bool = False


def read_rules(grammar: str) -> dict[str, Node]:
    """A grammar's rules by name; what is repeated counts as a rule, too, with a name that no other one has.

    Raises ValueError for what cannot be read, RecursionError for what is nested too deeply.
    """
    is_ebnf = any("::=" in re.sub(r"(#|//).*$", "", line) for line in grammar.split("\n"))
    rules: dict[str, Node] = {}
    ignored: list[Node] = []
    if not is_ebnf:
        for single, alias, several in _IMPORT.findall(grammar):
            for name in re.findall(r"\w+", several) or [single]:
                rules[alias or name] = _pattern(_COMMON[name]) if name in _COMMON else Node("closed")
    for head, body in _bodies(_tokens(grammar, _EBNF if is_ebnf else _LARK, rules)):
        node = _Reader(body, rules).whole()
        if head is None:
            ignored.append(node)
        else:
            rules[head] = Node("either", parts=(rules[head], node)) if head in rules else node
    if ignored:  # xgrammar takes any number of that between any two parts
        name = f"*{len(rules)}"
        rules[name] = Node("many", name, (Node("either", parts=tuple(ignored)),), 0, None)
    return rules


def _tokens(grammar: str, tokens: re.Pattern[str], rules: dict[str, Node]) -> Iterator[_Token]:
    at = 0
    while at < len(grammar):
        found = tokens.match(grammar, at)
        if found is None or found.end() == at:
            raise ValueError(f"unexpected {grammar[at]!r}")
        at = found.end()
        kind = next(name for name, text in found.groupdict().items() if text is not None)
        if kind == "json":
            value, at = json.JSONDecoder().raw_decode(grammar, at)
            for pattern in _patterns(value):
                rules[f"*{len(rules)}"] = _pattern(pattern)
            kind = "closed"
        elif kind in ("closed", "free") and grammar.startswith("(", at):
            at = _past_parenthesis(grammar, at)
        if kind not in ("skip", "brace"):
            yield kind, found.group(kind) if kind != "closed" else ""


def _bodies(tokens: Iterator[_Token]) -> Iterator[tuple[str | None, list[_Token]]]:
    """The rules' names and what stands after them; what is ignored has none."""
    name: str | None = ""
    body: list[_Token] = []
    for kind, text in tokens:
        if kind not in ("head", "ignore"):
            body.append((kind, text))
            continue
        if name != "":
            yield name, body
        elif body:
            raise ValueError("no rule")
        named = re.match(r"[?!]?([A-Za-z_.-][\w-]*(?:\.[A-Za-z_][\w-]*)*)", text)
        name, body = named.group(1) if named and kind == "head" else None, []
    if name == "":
        raise ValueError("no rule")
    yield name, body


class _Reader:
    def __init__(self, body: list[_Token], rules: dict[str, Node]) -> None:
        self._body = body
        self._rules = rules
        self._at = 0

    def whole(self) -> Node:
        """The body as one node."""
        node = self._alternatives()
        if self._at < len(self._body):
            raise ValueError("unbalanced")
        return node

    def _alternatives(self) -> Node:
        parts = [self._sequence()]
        while self._next() == ("sign", "|"):
            self._at += 1
            parts.append(self._sequence())
        return parts[0] if len(parts) == 1 else Node("either", parts=tuple(parts))

    def _sequence(self) -> Node:
        parts = []
        while self._at < len(self._body) and self._next() not in _ENDS:
            node = self._atom()
            while self._next()[0] == "many":
                node = self._repeated(node, *_bounds(self._next()[1]))
                self._at += 1
            parts.append(node)
        return parts[0] if len(parts) == 1 else Node("sequence", parts=tuple(parts))

    def _repeated(self, node: Node, least: int, most: int | None) -> Node:
        name = f"*{len(self._rules)}"  # no rule is called so
        self._rules[name] = repeated = Node("many", name, (node,), least, most)
        return repeated

    def _atom(self) -> Node:
        kind, text = self._next()
        self._at += 1
        if kind == "sign":
            node = self._alternatives()
            if self._next() != ("sign", _CLOSING.get(text)):
                raise ValueError("unbalanced")
            self._at += 1
            if text == "(=":
                return Node("sequence")  # looking ahead takes nothing
            return self._repeated(node, 0, 1) if text == "[" else node
        if kind == "text":
            return Node("text", _unescaped(text[1:-1]))
        if kind == "range":
            low, high = (_unescaped(end) for end in re.findall(r'"((?:[^"\\\n]|\\.)*)"', text))
            return _pattern(f"[{low}-{high}]")
        if kind == "pattern":
            return _pattern(_decoded(text))
        if kind == "quoted":
            return _pattern(_unescaped(text[1:-1]))
        if kind == "not":
            self._atom()
        if kind in ("not", "free"):
            return _pattern(_ANYTHING)
        if kind == "many":
            raise ValueError(f"unexpected {text}")
        return Node("name" if kind == "name" else "closed", text)

    def _next(self) -> _Token:
        return self._body[self._at] if self._at < len(self._body) else ("", "")


_ENDS = (("sign", "|"), ("sign", ")"), ("sign", "]"))


def _pattern(text: str) -> Node:
    try:
        return Node("pattern", text, nullable=read_pattern(text, Places()).nullable)
    except (IndexError, ValueError):
        return Node("closed")  # it takes nothing, or vLLM says what is wrong with it


def _patterns(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (value[key] for key in ("pattern", "regex") if isinstance(value.get(key), str))
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _patterns(inner)


def _bounds(text: str) -> tuple[int, int | None]:
    known = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(text)
    if known is not None:
        return known
    numbers = [int(number[:9]) for number in re.findall(r"\d+", text)]
    open_ended = "-" in text or (len(numbers) == 1 and "," in text)
    return numbers[0], None if open_ended else numbers[-1]


def _past_parenthesis(text: str, at: int) -> int:
    depth = 0
    for found in re.compile(rf"{_STRING}|[()]").finditer(text, at):
        depth += {"(": 1, ")": -1}.get(found.group(), 0)
        if depth == 0:
            return found.end()
    raise ValueError("unbalanced")


def _decoded(text: str) -> str:
    """Codes of characters as the characters themselves, as far as a regular expression has them plain."""

    def character(found: re.Match[str]) -> str:
        letter = chr(min(int(next(filter(None, found.groups())), 16), 0x10FFFF))
        return f"\\{letter}" if letter in "\\]^-[(){}.*+?|/$" else letter

    return _CODES.sub(character, text)


def _unescaped(text: str) -> str:
    def plain(found: re.Match[str]) -> str:
        return _PLAIN.get(found.group(1), found.group(1))

    return re.sub(r"\\(.)", plain, _CODES.sub(lambda code: _decoded(code.group())[-1], text), flags=re.S)
