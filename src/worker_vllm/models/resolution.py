"""What a configuration's names amount to: everything located, fetched, and put in the place of the names."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from worker_vllm import values
from worker_vllm.configuration import Configuration, Effective, manifest
from worker_vllm.configuration.model_config import Reader
from worker_vllm.configuration.report import Report
from worker_vllm.errors import ConfigurationError, StartupFailure
from worker_vllm.models import describe, download, support, tokenizer, wanted
from worker_vllm.models.facts import AdapterFacts, ModelFacts
from worker_vllm.models.hub import Hub
from worker_vllm.models.locate import Locator, Place
from worker_vllm.models.need import ADAPTER_CONFIG
from worker_vllm.models.wanted import Part, Wanted

logger = logging.getLogger(__name__)

_LATER_FROM_HUB = ("VLLM_LORA_RESOLVER_HF_REPO_LIST", "VLLM_ALLOW_RUNTIME_LORA_UPDATING")
"""Variables of vLLM with which adapters come from the hub while it serves."""


@dataclass(frozen=True)
class Resolution:
    """Where the model is, and all that was named with it.

    Attributes:
        facts: of the model, its tokenizer and its adapters.
        model: the model's place.
        others: the places of what else was named.
    """

    facts: ModelFacts
    model: Place
    others: tuple[Place, ...]

    @property
    def downloads(self) -> tuple[download.Download, ...]:
        """What is not on this machine yet."""
        return tuple(place.download for place in (self.model, *self.others) if place.download is not None)

    def fetch(self) -> None:
        """Download what is missing, if anything is; the room is looked at first.

        Raises:
            ConfigurationError: the hub refuses for good.
            EngineStartError: no room, or the hub does not answer for too long.
        """
        download.check_room(self.downloads)
        for item in self.downloads:
            item.run()

    def placed(self, configuration: Configuration, environ: Mapping[str, str]) -> Configuration:
        """`configuration` with paths for names, served under the same names, and offline where nothing is
        left to ask the hub for."""
        engine, frontend = dict(configuration.engine), dict(configuration.frontend)
        for arguments in (engine, frontend):
            for place in (self.model, *self.others):
                _put(arguments, place)
        environment = dict(configuration.environment)
        if self._needs_no_hub(environ):
            environment |= {name: "1" for name in manifest.OFFLINE if values.is_unset(environ.get(name))}
        return replace(configuration, engine=engine, frontend=frontend, environment=environment)

    def _needs_no_hub(self, environ: Mapping[str, str]) -> bool:
        places = (self.model, *self.others)
        if any(place.path is None for place in places) or self.facts.source == "path":
            return False  # a folder of the operator's own may hold anything
        later = any(not values.is_unset(environ.get(name)) for name in _LATER_FROM_HUB)
        elsewhere = any(place.facts.elsewhere or place.facts.code_elsewhere for place in places)
        return not later and not elsewhere

    def in_words(self) -> str:
        """Where the model is, in one line for the log."""
        facts, item = self.facts, self.model.download
        if facts.source == "remote":
            return f"model {facts.name}: left to vLLM"
        kind = facts.weights.format or "no"
        what = f"{kind} weights, {download.in_bytes(facts.weight_bytes)}"
        commit = f" at {facts.commit[:12]}" if facts.commit else ""
        if item is not None:
            return f"model {facts.name}{commit}: on the hub; {what}"
        place = {"path": "a folder", "baked": "in the image", "cache": "in the cache"}[facts.source]
        return f"model {facts.name}{commit}: {place}, {self.model.path}; {what}; the hub is not asked"


def resolve(configuration: Configuration, environ: Mapping[str, str], root: Path = Path("/")) -> Resolution:
    """Find everything that `configuration` names. Fetches no weights, and nothing at all of what is here.

    Args:
        root: where the image's own files are, and RunPod's volume.

    Raises:
        ConfigurationError: something that does not exist, may not be had, or cannot be run.
        EngineStartError: something is not whole on this machine, and the hub cannot be asked now.
    """
    asked = wanted.of(configuration)
    found = locator(asked, environ, root)
    model = found.find(asked.model)
    trouble = support.problems(
        model.facts, trust_remote_code=asked.trust_remote_code, overrides=asked.overrides
    )
    if trouble:
        raise ConfigurationError(trouble)
    others = tuple(found.find(part) for part in asked.others)
    facts = with_others(model.facts, others)
    if not asked.skips_tokenizer and facts.weights.format != "gguf":
        trouble = tokenizer.problems(facts, environ, mode=asked.tokenizer_mode)
    if trouble:
        raise ConfigurationError(trouble)
    return Resolution(facts, model, others)


def look(
    name: str,
    revision: str | None = None,
    *,
    environ: Mapping[str, str],
    tokenizer: str | None = None,
    tokenizer_revision: str | None = None,
    adapters: Mapping[str, str] | None = None,
    load_format: str = "auto",
    root: Path = Path("/"),
) -> ModelFacts:
    """The facts of a model by its name. Downloads no weights, and asks the hub once.

    Args:
        adapters: LoRA adapters, title to repository or path; one that cannot be had says so in its facts.
        environ: HF_TOKEN, HF_ENDPOINT, HF_HOME and so on.

    Raises:
        ConfigurationError: no such path, repository or revision, or it may not be had.
        EngineStartError: the hub cannot be asked now.
    """
    asked = Wanted(Part("model", name, revision), load_format=load_format, needs_tokenizer=tokenizer is None)
    found = locator(asked, environ, root, hub_asked_once)
    places = [found.find(asked.model)]
    if tokenizer:
        places.append(found.find(Part("tokenizer", tokenizer, tokenizer_revision, "TOKENIZER")))
    facts = with_others(places[0].facts, tuple(places[1:]))
    looked = tuple(_look_at_adapter(found, title, path) for title, path in (adapters or {}).items())
    return replace(facts, adapters=looked)


def hub_asked_once(*arguments: Any) -> Hub:
    """A hub for `locator` that is not waited for where it is in trouble."""
    return Hub(*arguments).without_patience()


def config_reader(environ: Mapping[str, str], root: Path = Path("/")) -> Reader:
    """Reads a model's config.json wherever it is; None where it cannot be had. The hub is asked once, as
    `resolve` meets the same obstacle and says more about it."""

    def read(model: str, revision: str | None) -> Mapping[str, Any] | None:
        found = locator(Wanted(Part("model", model)), environ, root, hub_asked_once)
        try:
            return found.find(Part("model", model, revision)).facts.config or None
        except StartupFailure:
            return None

    return read


def locator(
    asked: Wanted, environ: Mapping[str, str], root: Path = Path("/"), make_hub: Callable[..., Hub] = Hub
) -> Locator:
    """A locator for what is asked for, that knows the image's own model."""
    return Locator(
        environ,
        root=root,
        baked=manifest.read(root, Report()),  # what is wrong with it has been said by the configuration
        token=asked.token,
        download_dir=asked.download_dir,
        load_format=asked.load_format,
        needs_tokenizer=asked.needs_tokenizer,
        make_hub=make_hub,
    )


def with_others(model: ModelFacts, others: tuple[Place, ...]) -> ModelFacts:
    """`model`'s facts with those of its tokenizer and its adapters."""
    for place in others:
        if place.part.role == "tokenizer":
            facts = place.facts
            model = replace(
                model,
                tokenizer=place.part.name,
                tokenizer_files=facts.files,
                tokenizer_config=facts.tokenizer_config,
                chat_template=facts.chat_template or model.chat_template,
            )
    adapters = tuple(adapter(place) for place in others if place.part.role == "adapter")
    return replace(model, adapters=adapters)


def _look_at_adapter(found: Locator, title: str, path: str) -> AdapterFacts:
    try:
        return adapter(found.find(Part("adapter", path, variable="LORA_MODULES", title=title)))
    except ConfigurationError as error:
        return AdapterFacts(title, path, problem="; ".join(error.problems))


def adapter(place: Place) -> AdapterFacts:
    """The facts of an adapter: its base and its rank stand in its adapter_config.json."""
    title = place.part.title or place.part.name
    if place.facts.source == "remote":
        return AdapterFacts(title, place.part.name)
    config = _adapter_config(place)
    ranks = [config.get("r"), *_values(config.get("rank_pattern"))]
    base = config.get("base_model_name_or_path")
    return AdapterFacts(
        title,
        place.part.name,
        base=base if isinstance(base, str) else None,
        rank=max((rank for rank in ranks if isinstance(rank, int)), default=None),
        bytes=place.facts.weight_bytes,
        problem=_refused(config) if config else f"there is no {ADAPTER_CONFIG}: it is no LoRA adapter",
    )


def _refused(config: Mapping[str, Any]) -> str | None:
    """What an adapter has that vLLM refuses (vllm/lora/peft_helper.py), in words."""
    saved = config.get("modules_to_save")
    whole = [name for name in saved if name not in ("classifier", "score")] if isinstance(saved, list) else []
    has = [f"whole modules ({', '.join(map(str, whole))}, in modules_to_save)"] if whole else []
    has += [key for key in ("use_dora", "lora_bias", "layer_replication", "use_qalora") if config.get(key)]
    if config.get("bias") not in (None, "none"):
        has.append("a bias")
    return f"it has {' and '.join(has)}, which vLLM refuses: merge it into the model" if has else None


def _adapter_config(place: Place) -> Mapping[str, Any]:
    if place.download is not None:
        item = place.download
        path = item.hub.file(item.listing, ADAPTER_CONFIG) if ADAPTER_CONFIG in item.listing.files else None
    else:
        path = place.facts.directory / ADAPTER_CONFIG if place.facts.directory else None
    try:
        config = json.loads((describe.read_small(path) if path else None) or "{}")
    except (ValueError, RecursionError):
        return {}
    return config if isinstance(config, dict) else {}


def _values(pattern: Any) -> list[Any]:
    return list(pattern.values()) if isinstance(pattern, dict) else []


def _put(arguments: dict[str, Effective], place: Place) -> None:
    """Put a place's path where its name stands among `arguments`; a path stays as it was written."""
    if place.path is None or place.facts.source == "path":
        return
    part, path = place.part, str(place.path)
    name = {"adapter": "lora_modules", "speculator": "speculative_config"}.get(part.role, part.role)
    if name not in arguments:
        return
    before = arguments[name]
    value: Any = path
    if part.role == "speculator":
        value = {**before.value, "model": path}
    elif part.role == "adapter":
        value = [{**e, "path": path} if e["path"] == part.name else e for e in before.value]
    arguments[name] = replace(before, value=value)
