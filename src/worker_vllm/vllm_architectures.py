"""Which model classes the installed vLLM runs: read from its sources, as importing its registry takes many
seconds.

The registry is dictionaries of names (vllm/model_executor/models/registry.py, the same form in 0.26 to 0.33).
What it lacks may still run through transformers' own classes, whose names stand in transformers' automatic
mappings.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata, util
from pathlib import Path

_REGISTRY = "model_executor/models/registry.py"
_CONFIGS = "transformers_utils/config.py"
_AUTO = "models/auto"
_FAMILIES = ("auto_mappings.py", "configuration_auto.py")  # transformers 5, and 4

_SUFFIXES = re.compile(
    r"(ForCausalLM|ForConditionalGeneration|ChatModel|LMHeadModel|ForTextEncoding|EmbeddingModel"
    r"|ForSequenceClassification|ForTokenClassification|ForImageClassification|ForVideoClassification"
    r"|ForAudioClassification"
    r"|ClassificationModel|ForRewardModeling|RewardModel|Model)$"
)
"""Endings that vLLM exchanges for one another where a class itself is not in its registry
(`_SUFFIX_TO_DEFAULTS` of vllm/config/model.py)."""


@dataclass(frozen=True)
class Architectures:
    """What the installed vLLM and transformers know by name.

    Attributes:
        supported: classes in vLLM's registry.
        dropped: classes that vLLM once ran, to the last version that did.
        elsewhere: classes that a plugin brings, to where it is.
        model_types: families whose configuration vLLM itself reads.
        plugins: distributions other than vLLM that add to it as it starts, and may bring classes.
    """

    supported: frozenset[str]
    dropped: Mapping[str, str]
    elsewhere: Mapping[str, str]
    model_types: frozenset[str]
    plugins: tuple[str, ...]
    _transformers: str

    def runs(self, architecture: str) -> bool:
        """Whether vLLM has the class, or one with another ending that it takes for it."""
        return architecture in self.supported or stem(architecture) in map(stem, self.supported)

    def in_transformers(self, name: str) -> bool:
        """Whether transformers has a class or a model_type of that name."""
        return f'"{name}"' in self._transformers

    def reads(self, model_type: str) -> bool:
        """Whether vLLM or transformers reads the configuration of that family."""
        return model_type in self.model_types or self.in_transformers(model_type)

    def families(self) -> frozenset[str]:
        """The families that `reads` knows, and some other names in lower case."""
        return self.model_types | frozenset(re.findall(r'"([a-z][a-z0-9_-]+)"', self._transformers))


def stem(architecture: str) -> str:
    """A class's name without the ending that says what it is used for."""
    return _SUFFIXES.sub("", architecture)


def surely_runs(architecture: str) -> bool:
    """Whether the installed vLLM's registry has the class, by a look at its text alone: a millisecond, where
    `installed` takes a tenth of a second."""
    root = _folder("vllm")
    try:
        text = (root / _REGISTRY).read_text(encoding="utf-8") if root else ""
    except (OSError, ValueError):
        return False
    return f'"{architecture}": (' in text


def surely_reads(model_type: str) -> bool:
    """Whether vLLM or transformers, as installed, names the family; likewise by a look at their texts."""
    transformers = _folder("transformers")
    places = [root / _CONFIGS for root in (_folder("vllm"),) if root]
    places += [transformers / _AUTO / name for name in _FAMILIES] if transformers else []
    for place in places:
        try:
            if re.search(
                rf'"{re.escape(model_type)}"|\b{re.escape(model_type)}=', place.read_text(encoding="utf-8")
            ):
                return True
        except (OSError, ValueError):
            continue
    return False


@cache
def installed() -> Architectures | None:
    """What is installed; None without vLLM, or where its registry has another form."""
    root = _folder("vllm")
    tables = dict(_dictionaries(root / _REGISTRY)) if root else {}
    models = {name: table for name, table in tables.items() if name.endswith("_MODELS")}
    dropped = models.pop("_PREVIOUSLY_SUPPORTED_MODELS", {})
    elsewhere = models.pop("_OOT_SUPPORTED_MODELS", {})
    supported = frozenset(key for table in models.values() for key in table)
    if root is None or not supported:
        return None
    transformers = _folder("transformers")
    auto = sorted((transformers / _AUTO).glob("*.py")) if transformers else ()
    return Architectures(
        supported=supported,
        dropped={name: value for name, value in dropped.items() if value},
        elsewhere={name: value for name, value in elsewhere.items() if value},
        model_types=frozenset(_keywords(root / _CONFIGS, "_CONFIG_REGISTRY")),
        plugins=_plugins(),
        _transformers="\n".join(path.read_text(encoding="utf-8") for path in auto),
    )


def _folder(package: str) -> Path | None:
    try:
        spec = util.find_spec(package)
    except (ImportError, ValueError):
        return None
    return Path(spec.origin).parent if spec and spec.origin else None


def _plugins() -> tuple[str, ...]:
    points = metadata.entry_points(group="vllm.general_plugins")
    names = {point.dist.name for point in points if point.dist and not point.value.startswith("vllm.")}
    return tuple(sorted(names))


def _assignments(path: Path) -> Iterator[tuple[str, ast.expr]]:
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
            yield node.target.id, node.value


def _dictionaries(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Every dictionary of text that a module writes out: its name, and its keys to values ("" for others)."""
    for name, value in _assignments(path):
        if isinstance(value, ast.Dict):
            pairs = zip(value.keys, value.values, strict=True)
            yield name, {k: _text(v) for key, v in pairs if (k := _text(key))}


def _text(node: ast.expr | None) -> str:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _keywords(path: Path, wanted: str) -> Iterator[str]:
    for name, value in _assignments(path):
        if name == wanted and isinstance(value, ast.Call):
            yield from (keyword.arg for keyword in value.keywords if keyword.arg)
        elif name == wanted and isinstance(value, ast.Dict):
            yield from filter(None, map(_text, value.keys))
