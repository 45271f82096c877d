"""Whether vLLM can run a model, by its config.json alone: said before weights are fetched or loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from worker_vllm import vllm_architectures
from worker_vllm.configuration.nearest import nearest
from worker_vllm.models.facts import ModelFacts
from worker_vllm.vllm_architectures import Architectures

_NEAREST = 3
_OWN_CODE = (
    "runs only with Python code of its own repository: read that code, and if you trust it set "
    "TRUST_REMOTE_CODE=true"
)


def problems(
    model: ModelFacts,
    *,
    trust_remote_code: bool = False,
    overrides: Mapping[str, Any] | None = None,
    known: Architectures | None = None,
) -> list[str]:
    """What keeps vLLM from running `model`, a sentence each; empty where nothing is known against it.

    Args:
        overrides: HF_OVERRIDES, which may name another architecture.
        known: what vLLM and transformers have; the installed ones if None.
    """
    config = {**model.config, **(overrides or {})}
    if known is None and _is_plain(model, config):
        return []
    known = known or vllm_architectures.installed()
    if known is None:
        return []
    found = _gguf(model, known) if model.weights.format == "gguf" else []
    if _needs_own_code(config, known):
        return found if trust_remote_code else [*found, f"{model.name} {_OWN_CODE}"]
    return [*found, *_family(model, config, known), *_architecture(model, config, known)]


def runs_in_transformers(model: ModelFacts, overrides: Mapping[str, Any] | None = None) -> str | None:
    """The class that transformers has and vLLM has not, where that is what will run; None otherwise."""
    config = {**model.config, **(overrides or {})}
    names = _names(config)
    if not names or any(map(vllm_architectures.surely_runs, names)):
        return None
    known = vllm_architectures.installed()
    if known is None or known.plugins or any(map(known.runs, names)):
        return None
    return next(filter(known.in_transformers, names), None)


def _is_plain(model: ModelFacts, config: Mapping[str, Any]) -> bool:
    """Whether one look at vLLM's registry is enough."""
    return (
        not config.get("auto_map")
        and model.weights.format != "gguf"
        and any(map(vllm_architectures.surely_runs, _names(config)))
        and (not isinstance(kind := config.get("model_type"), str) or vllm_architectures.surely_reads(kind))
    )


def _gguf(model: ModelFacts, known: Architectures) -> list[str]:
    if not any("gguf" in name.lower() for name in known.plugins):
        return [
            f"{model.name} has its weights as GGUF alone, which vLLM reads with a plugin that is not "
            "installed (vllm-gguf-plugin): choose a repository with safetensors"
        ]
    if len(model.weights.files) > 1:
        names = ", ".join(sorted(model.weights.files))
        return [f"{model.name} has several GGUF files ({names}): choose one, as in org/name:Q4_K_M"]
    return []


def needs_own_code(model: ModelFacts) -> bool:
    """Whether neither vLLM nor transformers, as installed, has what `model`'s auto_map brings."""
    known = vllm_architectures.installed()
    return known is not None and _needs_own_code(model.config, known)


def _needs_own_code(config: Mapping[str, Any], known: Architectures) -> bool:
    auto_map = config.get("auto_map")
    if not isinstance(auto_map, dict) or not auto_map:
        return False
    kind = config.get("model_type")
    names = _names(config)
    reads_config = isinstance(kind, str) and _reads(kind, known)
    runs = any(known.runs(name) or known.in_transformers(name) for name in names)
    return not ((reads_config or "AutoConfig" not in auto_map) and (runs or not names))


def _reads(model_type: str, known: Architectures) -> bool:
    # some families are registered outside of the tables
    return known.reads(model_type) or vllm_architectures.surely_reads(model_type)


def _names(config: Mapping[str, Any]) -> list[str]:
    names = config.get("architectures")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _family(model: ModelFacts, config: Mapping[str, Any], known: Architectures) -> list[str]:
    """Whether config.json can be read; one in Mistral's own form (params.json) is read by vLLM itself."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind or known.plugins or "params.json" in model.files:
        return []
    if "AutoConfig" in (config.get("auto_map") or {}):
        return []
    if _reads(kind, known):
        return []
    near = nearest(kind, known.families())
    hint = f" (nearest: {near})" if near else ""
    return [
        f"{model.name} is of the family {kind} (model_type), which neither vLLM nor transformers, as "
        f"installed, reads{hint}: choose another model, or an image with a later vLLM"
    ]


def _architecture(model: ModelFacts, config: Mapping[str, Any], known: Architectures) -> list[str]:
    names = _names(config)
    if not names or any(map(known.runs, names)) or known.plugins:
        return []  # a plugin may bring the class
    name = names[0]
    if name in known.elsewhere:
        return [f"{model.name} is a {name}, which vLLM runs with a plugin alone: {known.elsewhere[name]}"]
    if any(map(known.in_transformers, names)):
        return []
    if name in known.dropped:
        return [
            f"{model.name} is a {name}, which vLLM dropped after {known.dropped[name]}: choose another model"
        ]
    near = nearest_names(name, known)
    hint = f" (nearest: {', '.join(near)})" if near else ""
    return [f"{model.name} is a {name}, which neither vLLM nor transformers has{hint}: choose another model"]


def nearest_names(architecture: str, known: Architectures) -> list[str]:
    """The supported classes whose names are most like `architecture`, the most alike first."""
    left = set(known.supported)
    found: list[str] = []
    while len(found) < _NEAREST and (name := nearest(architecture, left)):
        found.append(name)
        left.discard(name)
    return found
