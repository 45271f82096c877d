"""vLLM's arguments as data: what the installed version's own parser and dataclasses say, kept as plain
values.
 Nothing here imports vLLM: `vllm_arguments.read_table` makes a table from the parser, and a table can be
kept as JSON, so that a configuration can be checked without the seconds that importing vLLM takes.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from worker_vllm import values
from worker_vllm.configuration.nearest import nearest
from worker_vllm.env_names import ALIASES, DENIED, SURROUNDINGS

Kind = Literal["bool", "int", "float", "text", "json", "json_or_text"]


class Argument(BaseModel):
    """One argument of vLLM.

    Attributes:
        name: vLLM's name with underscores; the variable is this in upper case.
        home: who reads it: the engine (AsyncEngineArgs) or vLLM's HTTP front end.
        kind: how its text is read; of the items, where `many`.
        many: whether it takes a list.
        nullable: whether vLLM's default, or None, can be given.
        suffixes: whether 8k and 8K are understood.
        auto: whether the word auto is.
        choices: the only values the parser takes; empty where it takes any.
        suggestions: the values that vLLM names, where it takes others too.
        lowered: whether the parser reads its text in lower case with underscores.
        keys: the keys of an object that vLLM reads into a dataclass; empty for free-form objects.
        required: those of `keys` without a default.
        flags: command-line spellings that set it (to true, for a boolean).
        negative_flags: spellings that set a boolean to false.
        default: vLLM's default as plain data, or its text where it has no plain form.
        help: vLLM's own description.
    """

    model_config = ConfigDict(frozen=True)

    name: str
    home: Literal["engine", "frontend"]
    kind: Kind
    many: bool = False
    nullable: bool = False
    suffixes: bool = False
    auto: bool = False
    choices: tuple[str | int, ...] = ()
    suggestions: tuple[str, ...] = ()
    lowered: bool = False
    keys: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    negative_flags: tuple[str, ...] = ()
    default: Any = None
    help: str = ""

    @cached_property
    def variable(self) -> str:
        """The environment variable of this name."""
        return self.name.upper()

    @cached_property
    def variables(self) -> tuple[str, ...]:
        """The variables that set it, the strongest first; none for a name of the surroundings."""
        spellings = [*ALIASES.get(self.name, (self.variable,))]
        # vLLM's own second spellings, such as --device-memory-utilization
        spellings += [_variable(flag) for flag in self.flags if flag.startswith("--")]
        return tuple(
            dict.fromkeys(name for name in spellings if name not in DENIED and name not in SURROUNDINGS)
        )

    @cached_property
    def inverse_variables(self) -> tuple[str, ...]:
        """The variables that set a boolean to the opposite of what they say: vLLM 0.33 has --disable-x for
        --enable-x."""
        return tuple(_variable(flag) for flag in self.negative_flags if not flag.startswith("--no-"))

    def read(self, raw: object) -> Any:
        """`raw` as plain data of this argument's kind.

        Raises:
            ValueError: saying what was expected, and the nearest right word where there is one.
        """
        if not self.many:
            return self._read_one(raw)
        items = [self._read_one(item) for item in values.read_list(raw)]
        if not items:
            raise ValueError("expected at least one item")
        return items

    def _read_one(self, raw: object) -> Any:
        match self.kind:
            case "bool":
                return values.read_bool(raw)
            case "int":
                return self._check(values.read_int(raw, suffixes=self.suffixes, auto=self.auto))
            case "float":
                return values.read_float(raw)
            case "json":
                return self.check_keys(values.read_mapping(raw))
            case "json_or_text":
                is_object = not isinstance(raw, str) or raw.strip()[:1] == "{"
                return values.read_mapping(raw) if is_object else str(raw).strip()
        if isinstance(raw, dict | list):
            raise ValueError("expected text")
        return self._check(str(raw).strip() if not isinstance(raw, bool) else str(raw).lower())

    def _check(self, value: str | int) -> str | int:
        if not self.choices:
            return value
        if self.lowered and isinstance(value, str):
            value = value.lower().replace("-", "_")
        if value in self.choices:
            return value
        # vLLM compares exactly; what else could Half or FP8 mean
        folded = {str(choice).lower(): choice for choice in self.choices}
        if str(value).lower() in folded:
            return folded[str(value).lower()]
        raise ValueError(unknown_word(str(value), tuple(map(str, self.choices))))

    def check_keys(self, value: dict[str, Any], *, whole: bool = True) -> dict[str, Any]:
        """`value`, if it has only keys that vLLM knows there, and (where it is the whole object) those it
        needs.

        Raises:
            ValueError: naming the key and the nearest right one.
        """
        for key in value:
            if self.keys and key not in self.keys:
                raise ValueError(f"unknown key {values.shown(key)}{_hint(key, self.keys)}")
        missing = [key for key in self.required if whole and key not in value]
        if missing:
            raise ValueError(f"lacks the key {', '.join(map(repr, missing))}")
        return value


class ArgumentTable(BaseModel):
    """Every argument of one vLLM.

    Attributes:
        version: of vLLM.
        fingerprint: of the sources the table was read from.
        arguments: by no particular order.
        registries: names that vLLM looks up only when it needs them, by the argument that takes one; under
            speculative_config, the keys that it takes.
        environment: the environment variables that vLLM itself reads.
    """

    model_config = ConfigDict(frozen=True)

    version: str
    fingerprint: str = ""
    arguments: tuple[Argument, ...]
    registries: dict[str, tuple[str, ...]] = {}
    environment: tuple[str, ...] = ()

    @cached_property
    def by_name(self) -> dict[str, Argument]:
        """Name to argument."""
        return {argument.name: argument for argument in self.arguments}

    @cached_property
    def by_flag(self) -> dict[str, tuple[Argument, bool]]:
        """Flag to its argument, and whether it is the flag that says yes."""
        found = {flag: (argument, True) for argument in self.arguments for flag in argument.flags}
        found |= {flag: (argument, False) for argument in self.arguments for flag in argument.negative_flags}
        return found

    @property
    def release(self) -> tuple[int, int]:
        """Major and minor version, to compare with."""
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


def _variable(flag: str) -> str:
    return flag.removeprefix("--").replace("-", "_").upper()


def unknown_word(word: str, known: tuple[str, ...], limit: int = 12) -> str:
    """What to say of a word that is none of `known`: the nearest one, and all of them if they are few."""
    if len(known) <= limit:
        return f"expected one of {', '.join(known)}{_hint(word, known)}"
    return f"no such name among the {len(known)} that this vLLM has{_hint(word, known)}"


def _hint(word: str, known: tuple[str, ...]) -> str:
    near = nearest(word, known)
    return f"; did you mean {near}?" if near else ""
