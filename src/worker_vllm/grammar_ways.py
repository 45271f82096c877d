"""In how many ways a grammar takes a text: what makes one stall the engine, as `regex_ways` has it.

xgrammar keeps each way that a text can have come about and looks at all of them for each further character,
in the engine's own loop: its work for a token grows with the square of the text's length, and more, where a
rule begins and ends with itself, and where what is repeated has no end of its own. Not seen is a rule with
itself in the middle, between what takes the same characters: its work grows with the length alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache

from worker_vllm.grammar_rules import Node, read_rules
from worker_vllm.regex_ways import TEXT_LENGTH, Part, Places, TooManyLinks, read_pattern

MAX_WAYS = 40
"""Fewer than for regular expressions, since xgrammar merges no ways from one rule into another: `ws ws ws`
took 0.6 s a token after 123 tokens of white space. Ordinary grammars have up to 17, with `ws ws`."""
MAX_PLACES = 600
"""So many places of a rule are looked at, rules inside it included; its own ones in any case."""
MAX_PLACES_IN_ALL = 20_000
"""Over all rules of a grammar. One with more of its own is not looked at in full, and refused."""
MIN_PLACES = 30
MAX_RULES = 1_500
"""A grammar of more rules and repetitions is not looked at, and refused."""
_MAX_DEPTH = 16


def is_ambiguous_grammar(grammar: str) -> bool:
    """Whether `grammar` takes some text in too many ways, or is too much to tell; False for what cannot be
    read."""
    try:
        rules = read_rules(grammar)
        if len(rules) > MAX_RULES:
            return True
        return _recurs_at_an_end(rules) or _repeats_without_end(rules)
    except (TooManyLinks, RecursionError):
        return True
    except (ValueError, IndexError):
        return False  # vLLM says what is wrong with it


def _recurs_at_an_end(rules: Mapping[str, Node]) -> bool:
    """Whether a rule can both begin and end with itself, or be itself and nothing more; a repetition does
    both where what is repeated begins or ends with the repetition. Or whether a rule begins or ends with
    itself but for what is repeated and may be missing: each level of the rule could take that."""
    nullable = _nullable_rules(rules)
    loops = {name for name, node in rules.items() if node.kind == "many" and node.most != 1}
    recursive = []
    for direction in (1, -1):
        graph = {name: _corners(node, rules, nullable, direction) for name, node in rules.items()}
        groups = _groups(graph)
        edges = [(name, other) for name in graph for other in graph[name] if groups[name] == groups[other]]
        if any(graph[name][other] for name, other in edges):
            return True
        recursive.append({name for name, _ in edges})
    begins, ends = recursive
    return bool((begins & ends) | (begins & loops) | (ends & loops))


def _nullable_rules(rules: Mapping[str, Node]) -> set[str]:
    found: set[str] = set()
    users: dict[str, list[str]] = {}
    for name, node in rules.items():
        for inner in _names(node):
            users.setdefault(inner, []).append(name)
    left = list(rules)
    while left:
        name = left.pop()
        if name not in found and _is_nullable(rules[name], found):
            found.add(name)
            left += users.get(name, [])
    return found


def _names(node: Node) -> Iterable[str]:
    """Rules that a node's text names, at any depth; a repetition inside it is one of them."""
    for part in node.parts:
        if part.kind in ("name", "many"):
            yield part.text
        else:
            yield from _names(part)
    if node.kind == "name":
        yield node.text


def _is_nullable(node: Node, known: set[str]) -> bool:
    if node.kind == "name":
        return node.text in known
    if node.kind == "many":
        return node.least == 0 or node.most == 0 or node.text in known or _is_nullable(node.parts[0], known)
    if node.kind == "either":
        return any(_is_nullable(part, known) for part in node.parts)
    if node.kind == "sequence":
        return all(_is_nullable(part, known) for part in node.parts)
    return node.nullable or (node.kind == "text" and not node.text)


def _corners(node: Node, rules: Mapping[str, Node], nullable: set[str], direction: int) -> dict[str, bool]:
    """The rules with which what is inside a node can begin (direction 1) or end (-1), and whether something
    repeated can stand before or after them."""
    if node.kind == "name":
        return {node.text: False} if node.text in rules else {}
    found: dict[str, bool] = {}
    beside = False
    for part in node.parts[::direction]:
        inner = {part.text: False} if part.kind == "many" else _corners(part, rules, nullable, direction)
        for name, loose in inner.items():
            found[name] = found.get(name, False) or loose or beside
        if node.kind == "sequence":
            if not _is_nullable(part, nullable):
                break
            beside = beside or _repeats(part, rules, nullable, set())
    return found


def _repeats(node: Node, rules: Mapping[str, Node], nullable: set[str], seen: set[str]) -> bool:
    """Whether a node can take one thing over and over."""
    if node.kind == "many":
        return node.most != 1 or _repeats(node.parts[0], rules, nullable, seen)
    if node.kind == "name":
        if node.text in seen or node.text not in rules:
            return False
        seen.add(node.text)
        return _repeats(rules[node.text], rules, nullable, seen)
    if node.kind == "sequence" and not _is_nullable(node, nullable):
        return False
    return node.nullable or any(_repeats(part, rules, nullable, seen) for part in node.parts)


def _groups(graph: Mapping[str, Iterable[str]]) -> dict[str, int]:
    """The names by the group of those that lead to each other, by Kosaraju's two walks."""
    order: list[str] = []
    _walk(graph, graph, order)
    backwards: dict[str, list[str]] = {name: [] for name in graph}
    for name, following in graph.items():
        for other in following:
            backwards[other].append(name)
    groups: list[list[str]] = []
    _walk(backwards, reversed(order), [], groups)
    return {name: number for number, group in enumerate(groups) for name in group}


def _walk(
    graph: Mapping[str, Iterable[str]],
    starts: Iterable[str],
    order: list[str],
    groups: list[list[str]] | None = None,
) -> None:
    seen: set[str] = set()
    for start in starts:
        if start in seen:
            continue
        seen.add(start)
        group = [start]
        path = [(start, iter(graph[start]))]
        while path:
            name, following = path[-1]
            other = next((other for other in following if other not in seen), None)
            if other is None:
                order.append(name)
                path.pop()
                continue
            seen.add(other)
            group.append(other)
            path.append((other, iter(graph[other])))
        if groups is not None:
            groups.append(group)


def _repeats_without_end(rules: Mapping[str, Node]) -> bool:
    """Whether a rule, or what is repeated in one, takes a short text in too many ways."""
    own = {name: _own_places(node) for name, node in rules.items()}
    names = {name: list(_names(node)) for name, node in rules.items()}
    repeated = {node.text for node in rules.values() if node.kind == "many"}

    @cache
    def places_of(name: str, depth: int) -> int:
        if name not in rules or depth < 0:
            return 1
        inner = sum(places_of(other, depth - (other not in repeated)) for other in names[name])
        return min(own[name] + inner, MAX_PLACES_IN_ALL)

    if sum(own.values()) > MAX_PLACES_IN_ALL:
        return True
    limit = max(MIN_PLACES, min(MAX_PLACES, MAX_PLACES_IN_ALL // len(rules)))
    for name, node in rules.items():
        if node.kind == "many" and node.most == 1:
            continue
        depth = next((depth for depth in range(_MAX_DEPTH, 0, -1) if places_of(name, depth) <= limit), 0)
        places = Places()
        if places.too_many_ways(_laid_out(node, rules, depth, places), MAX_WAYS):
            return True
    return False


def _own_places(node: Node) -> int:
    """How many places a node has without the rules, and the repetitions, inside it."""
    if node.kind == "text":
        return min(len(node.text), TEXT_LENGTH)
    if node.kind == "pattern":
        places = Places()
        read_pattern(node.text, places)
        return len(places.places)
    return sum(_own_places(part) if part.kind != "many" else 0 for part in node.parts)


def _laid_out(node: Node, rules: Mapping[str, Node], depth: int, places: Places) -> Part:
    """A node with the rules inside it, `depth` deep; below that nothing is taken."""
    if node.kind == "text":
        whole = Part()
        for letter in node.text[:TEXT_LENGTH]:
            whole = places.followed(whole, places.letter(letter))
        return whole
    if node.kind == "pattern":
        return read_pattern(node.text, places)
    if node.kind == "closed" or (node.kind == "name" and (depth <= 0 or node.text not in rules)):
        return places.place(lambda c: False)
    if node.kind == "name":
        return _laid_out(rules[node.text], rules, depth - 1, places)
    parts = [_laid_out(part, rules, depth, places) for part in node.parts]
    if node.kind == "many":
        return places.repeated(parts[0], node.least, node.most)
    if node.kind == "either":
        return places.either(parts)
    whole = Part()
    for part in parts:
        whole = places.followed(whole, part)
    return whole
