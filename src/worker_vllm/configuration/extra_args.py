"""VLLM_EXTRA_ARGS: vLLM's command line in one variable, read against the argument table."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from worker_vllm import values
from worker_vllm.configuration.arguments import Argument, ArgumentTable
from worker_vllm.configuration.given import Given
from worker_vllm.configuration.nearest import nearest
from worker_vllm.configuration.report import Report

VARIABLE = "VLLM_EXTRA_ARGS"

_NUMBER = re.compile(r"-\d+(\.\d*)?|-\.\d+")


def read(environ: Mapping[str, str], table: ArgumentTable, report: Report) -> dict[str, Given]:
    """What VLLM_EXTRA_ARGS says of vLLM's arguments, by name: flags as `vllm serve` takes them, the last
    one wins."""
    text = environ.get(VARIABLE, "")
    if values.is_unset(text):
        return {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        report.problem(f"{VARIABLE}: {str(error).lower()}: a quote is open or a backslash ends the text")
        return {}
    return _Reader(table, report).read(words)


class _Reader:
    def __init__(self, table: ArgumentTable, report: Report) -> None:
        self._table = table
        self._report = report
        self._found: dict[str, Given] = {}

    def read(self, words: list[str]) -> dict[str, Given]:
        position = 0
        while position < len(words):
            word = words[position]
            following = words[position + 1 : self._end(words, position + 1)]
            if not _is_flag(word):
                self._report.problem(
                    f"{VARIABLE}: {values.shown(word)} follows no flag; name the model in MODEL_NAME"
                )
                position += 1
                continue
            position += 1 + self._read_flag(word, following)
        return self._found

    @staticmethod
    def _end(words: list[str], start: int) -> int:
        return next((i for i in range(start, len(words)) if _is_flag(words[i])), len(words))

    def _read_flag(self, word: str, following: list[str]) -> int:
        """Read one flag; returns how many of the words after it belong to it."""
        flag, equals, value = word.partition("=")
        if not flag.startswith("--") and (match := re.fullmatch(r"-O(\d)", flag)):
            flag, equals, value = "--optimization-level", "=", match[1]
        path, _, key = flag.partition(".")
        if path.startswith("--"):
            path = path.replace("_", "-")
        known = self._table.by_flag.get(path)
        if known is None:
            near = nearest(path, self._table.by_flag)
            hint = f"; did you mean {near}?" if near else ""
            self._report.problem(f"{VARIABLE}: {path} is no flag of vLLM {self._table.version}{hint}")
            return len(following)
        argument, positive = known
        if argument.kind == "bool" or (argument.name == "hf_token" and not equals and not following):
            return self._read_switch(argument, path, positive, value if equals else None, following)
        given = [value] if equals else following if argument.many else following[:1]
        if not given:
            self._report.problem(f"{VARIABLE}: {path} needs a value")
            return 0
        self._keep(argument, path, self._value(argument, key, given))
        return 0 if equals else len(given)

    def _read_switch(
        self, argument: Argument, flag: str, positive: bool, value: str | None, following: list[str]
    ) -> int:
        if following and following[0].lower() in values.TRUE_WORDS | values.FALSE_WORDS:
            # vLLM would take the word for the model's name
            off = next(iter(argument.negative_flags), None)
            hint = f"; the opposite is {off}" if off else ""
            self._report.problem(f"{VARIABLE}: {flag} takes no value{hint}")
            return 1
        self._keep(argument, flag, positive if value is None else value)
        return 0

    def _value(self, argument: Argument, key: str, given: list[str]) -> Any:
        if key:
            return self._merge(argument, key, given[0])
        # `--flag a b` and `--flag a,b` differ in vLLM; a text with a comma stays one item
        return given if argument.many and len(given) > 1 else given[0]

    def _merge(self, argument: Argument, key: str, text: str) -> Any:
        before = self._found.get(argument.name)
        merged: dict[str, Any] = dict(before.raw) if before and isinstance(before.raw, dict) else {}
        items = key.endswith("+")
        *path, last = key.rstrip("+").split(".")
        inner = merged
        for part in path:
            inner[part] = dict(inner[part]) if isinstance(inner.get(part), dict) else {}
            inner = inner[part]
        try:
            inner[last] = text.split(",") if items else values.read_scalar(text)
        except ValueError:
            inner[last] = text
        return merged

    def _keep(self, argument: Argument, flag: str, value: Any) -> None:
        self._found[argument.name] = Given(value, "extra_args", f"{VARIABLE} {flag}")


def _is_flag(word: str) -> bool:
    return word.startswith("-") and len(word) > 1 and not _NUMBER.fullmatch(word)
