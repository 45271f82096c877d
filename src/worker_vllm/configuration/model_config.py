"""A model's config.json, from where it lies or, if need be, from the hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def read(model: str, revision: str | None) -> Mapping[str, Any] | None:
    """The config.json of a local folder or a hub repository; None if it cannot be had, whatever the reason:
    the engine will meet the same obstacle and say more about it."""
    try:
        folder = Path(model)
        path = folder / "config.json" if folder.is_dir() else _download(model, revision)
        content = json.loads(path.read_text(encoding="utf-8")) if path else None
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def _download(model: str, revision: str | None) -> Path | None:
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        return None
    try:
        return Path(hf_hub_download(model, "config.json", revision=revision, etag_timeout=5))
    except (HfHubHTTPError, HFValidationError, OSError, ValueError):
        return None
