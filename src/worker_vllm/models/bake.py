"""Put a model and what goes with it into an image or onto a volume: only what vLLM loads, of one commit,
verified, and written down where the worker looks.

The files lie as in a hub cache, so that a volume filled here is found like any other. The token is sent to
the hub and kept nowhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from worker_vllm.errors import ConfigurationError, EngineStartError
from worker_vllm.models import cache, download, support, weights
from worker_vllm.models.download import Download
from worker_vllm.models.facts import ModelFacts
from worker_vllm.models.hub import Hub, RemoteFile
from worker_vllm.models.need import ADAPTER_CONFIG, Need
from worker_vllm.models.wanted import Part

VOLUMES = (Path("/runpod-volume"), Path("/workspace"))
"""Where RunPod mounts a network volume: on Serverless, and on a Pod."""

_CHUNK_BYTES = 8 * 1024**2


@dataclass(frozen=True)
class Baked:
    """One part that is in its place.

    Attributes:
        path: its folder.
        commit: what its files are of.
        files: how many.
        bytes: of all of them.
    """

    part: Part
    path: Path
    commit: str
    files: int
    bytes: int


def check_target(
    target: Path, *, volume: bool = False, is_mount: Callable[[Path], bool] | None = None
) -> None:
    """See that what is written to `target` will be where it is looked for.

    Args:
        volume: whether `target` is meant to be on a volume that is mounted now.
        is_mount: tells a mount point; the operating system's own if None.

    Raises:
        ConfigurationError: an image would not have the files, or a volume would hide them.
    """
    is_mount = is_mount or os.path.ismount
    place = target.resolve()
    mount = next((folder for folder in (place, *place.parents) if is_mount(folder)), Path("/"))
    problem = None
    if volume:
        if mount == Path("/"):
            problem = "no volume is mounted there"
    elif hides := next((folder for folder in VOLUMES if place.is_relative_to(folder)), None):
        problem = (
            f"RunPod mounts a network volume at {hides}, and that hides what the image has there: bake to "
            "another folder, such as /models, or add --volume to fill a volume that is mounted now"
        )
    elif mount != Path("/"):
        problem = (
            f"{mount} is a volume, so the files would not be in the image: bake to another folder, such as "
            "/models, or add --volume if filling that volume is what you want"
        )
    if problem is not None:
        raise ConfigurationError([f"--to {target}: {problem}"])


def bake(parts: Sequence[Part], hub: Hub, load_format: str = "auto") -> list[Baked]:
    """Download `parts` to the hub's cache folder and verify every file of them.

    Raises:
        ConfigurationError: a part that is not on the hub, may not be had, or that vLLM cannot run.
        EngineStartError: the hub cannot be reached for too long, there is no room, or a file is damaged.
    """
    need = Need(load_format)
    downloads = [_order(part, hub, need) for part in parts]
    download.check_room(downloads)
    baked: list[Baked] = []
    for part, item in zip(parts, downloads, strict=True):
        path = item.run()
        verify(item)
        files = item.files.values()
        baked.append(Baked(part, path, item.listing.commit, len(files), sum(file.size for file in files)))
    return baked


def remove_locks(folder: Path) -> None:
    """Remove the lock files that downloads left in an image, where nobody else is."""
    shutil.rmtree(folder / ".locks", ignore_errors=True)


def _order(part: Part, hub: Hub, need: Need) -> Download:
    if not cache.REPOSITORY.fullmatch(part.name):
        raise ConfigurationError(
            [f"{part.variable} {part.name}: expected a repository's name, as in org/name"]
        )
    listing = hub.listing(part.name, part.revision)
    facts = hub.facts(listing, part.name, need.load_format)
    trouble = _trouble(part, facts, need)
    if trouble:
        raise ConfigurationError(trouble)
    return Download(hub, listing, weights.wanted(listing.files, need.weights_of(part, facts)))


def _trouble(part: Part, facts: ModelFacts, need: Need) -> list[str]:
    if part.role == "adapter" and ADAPTER_CONFIG not in facts.files:
        return [f"{part.variable} {part.name}: it has no {ADAPTER_CONFIG}, so it is no LoRA adapter"]
    if not need.is_usable(part, facts):
        return [f"{part.variable} {part.name}: it lacks what a {part.role} needs"]
    elsewhere = facts.elsewhere
    if facts.code_elsewhere and support.needs_own_code(facts):
        elsewhere += facts.code_elsewhere
    if elsewhere:
        names = ", ".join(elsewhere)
        return [
            f"{part.variable} {part.name}: its config.json names {names}, too, which vLLM would look for "
            "on the hub: it cannot be baked"
        ]
    if part.role != "model":
        return []
    return support.problems(facts, trust_remote_code=True)


def verify(item: Download) -> None:
    """Compare every file with the hash that the hub lists.

    Raises:
        EngineStartError: naming the files that differ; they are removed, so that baking again fetches them.
    """
    damaged = [name for name, file in item.files.items() if not _is_intact(item.directory / name, file)]
    for name in damaged:
        (item.directory / name).resolve().unlink(missing_ok=True)
        (item.directory / name).unlink(missing_ok=True)
    if damaged:
        raise EngineStartError(
            f"{item.listing.repository}: {', '.join(damaged)} differ from what the hub lists and were "
            "removed: bake again"
        )


def _is_intact(path: Path, file: RemoteFile) -> bool:
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(b"blob %d\0" % file.size)  # git's own hash
    with path.open("rb") as content:
        while chunk := content.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == (file.sha256 or file.blob)


def write_manifest(path: Path, baked: Sequence[Baked], quantization: str | None = None) -> Mapping[str, Any]:
    """Write down what was baked, in the form that `configuration.manifest` reads; returns it."""
    content: dict[str, Any] = {}
    adapters: list[dict[str, str]] = []
    for item in baked:
        if item.part.role == "model":
            content |= {
                "MODEL_NAME": str(item.path),
                "MODEL_REPO": item.part.name,
                "MODEL_REVISION": item.commit,
            }
        elif item.part.role == "tokenizer":
            content |= {"TOKENIZER_NAME": str(item.path), "TOKENIZER_REVISION": item.commit}
        elif item.part.role == "adapter":
            adapters.append({"name": item.part.title or item.part.name, "path": str(item.path)})
    if quantization:
        content["QUANTIZATION"] = quantization
    if adapters:
        content["LORA_MODULES"] = json.dumps(adapters)
    content["BAKED"] = [
        {
            "role": item.part.role,
            "repository": item.part.name,
            "revision": item.commit,
            "path": str(item.path),
            "files": item.files,
            "bytes": item.bytes,
        }
        for item in baked
    ]
    draft = path.with_name(f"{path.name}.tmp")
    draft.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    draft.replace(path)
    return content
