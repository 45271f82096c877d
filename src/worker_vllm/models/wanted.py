"""What a configuration asks for by name: the model, and what may come from elsewhere with it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from worker_vllm.configuration import Configuration

Role = Literal["model", "tokenizer", "adapter", "speculator"]


@dataclass(frozen=True)
class Part:
    """One thing that is asked for by a repository's id or a path.

    Attributes:
        variable: what set it, for messages.
        title: an adapter's name in requests.
    """

    role: Role
    name: str
    revision: str | None = None
    variable: str = "MODEL_NAME"
    title: str | None = None


@dataclass(frozen=True)
class Wanted:
    """Everything asked for.

    Attributes:
        model: the model itself.
        others: tokenizer, adapters and speculator, where they are named.
        load_format: LOAD_FORMAT.
        token: HF_TOKEN, wherever it was set.
        download_dir: DOWNLOAD_DIR.
        trust_remote_code: TRUST_REMOTE_CODE.
        overrides: HF_OVERRIDES, where it is an object.
        needs_tokenizer: whether the model's own tokenizer is used.
        tokenizer_mode: TOKENIZER_MODE.
        skips_tokenizer: SKIP_TOKENIZER_INIT.
    """

    model: Part
    others: tuple[Part, ...] = ()
    load_format: str = "auto"
    token: str | None = None
    download_dir: str | None = None
    trust_remote_code: bool = False
    overrides: Mapping[str, Any] | None = None
    needs_tokenizer: bool = True
    tokenizer_mode: str = "auto"
    skips_tokenizer: bool = False


def of(configuration: Configuration) -> Wanted:
    """What `configuration` asks for."""
    arguments = {**configuration.engine, **configuration.frontend}

    def value(name: str) -> Any:
        return arguments[name].value if name in arguments else None

    def variable(name: str) -> str:
        return (arguments[name].variable if name in arguments else None) or name.upper()

    others = [*_adapters(value("lora_modules"), variable("lora_modules"))]
    tokenizer = value("tokenizer")
    if isinstance(tokenizer, str) and tokenizer:
        revision = value("tokenizer_revision")
        others.append(Part("tokenizer", tokenizer, revision, variable("tokenizer")))
    speculation = value("speculative_config")
    if isinstance(speculation, dict) and isinstance(speculation.get("model"), str):
        drafter, revision = speculation["model"], speculation.get("revision")
        if drafter not in ("ngram", "[ngram]"):
            others.append(Part("speculator", drafter, revision, variable("speculative_config")))
    token, overrides = value("hf_token"), value("hf_overrides")
    return Wanted(
        model=Part("model", str(value("model")), value("revision"), variable("model")),
        others=tuple(others),
        load_format=str(value("load_format") or "auto"),
        token=token if isinstance(token, str) else None,
        download_dir=value("download_dir"),
        trust_remote_code=bool(value("trust_remote_code")),
        overrides=overrides if isinstance(overrides, dict) else None,
        needs_tokenizer=not tokenizer and not value("skip_tokenizer_init"),
        tokenizer_mode=str(value("tokenizer_mode") or "auto"),
        skips_tokenizer=bool(value("skip_tokenizer_init")),
    )


def _adapters(modules: Any, variable: str) -> list[Part]:
    entries = modules if isinstance(modules, list) else []
    return [
        Part("adapter", entry["path"], variable=variable, title=entry.get("name"))
        for entry in entries
        if isinstance(entry, dict) and isinstance(entry.get("path"), str)
    ]
