"""`worker-vllm bake`: put a model into an image while it is built, or onto a volume."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from worker_vllm import values
from worker_vllm.errors import ConfigurationError

_DESCRIPTION = """\
Download a model, and what goes with it, to where a worker finds it: only the files that vLLM loads, of one
commit, every file verified. In an image build this also writes the manifest that the worker reads, so that
the image needs neither MODEL_NAME nor a hub. Where an option is left out, the variable behind it counts.
"""

_EPILOG = """\
A token for gated models comes from a build secret (or from HF_TOKEN) and is kept nowhere:

  RUN --mount=type=secret,id=HF_TOKEN worker-vllm bake --model org/name

A volume is filled from a Pod that has it mounted, in the place where Serverless workers look:

  worker-vllm bake --model org/name --to /workspace/huggingface-cache/hub --volume

vLLM's compile cache is not filled: that takes the GPU that will run the model.
"""

SECRET = Path("/run/secrets/HF_TOKEN")
"""Where a Docker build mounts the secret HF_TOKEN."""


def add_parser(subparsers: Any) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "bake",
        help="put a model into an image or onto a volume",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="REPO", help="the model's repository (MODEL_NAME)")
    parser.add_argument("--revision", help="its branch, tag or commit (MODEL_REVISION)")
    parser.add_argument("--tokenizer", metavar="REPO", help="another tokenizer (TOKENIZER_NAME)")
    parser.add_argument("--tokenizer-revision", metavar="REVISION", help="(TOKENIZER_REVISION)")
    parser.add_argument(
        "--adapter",
        metavar="[NAME=]REPO[@REVISION]",
        action="append",
        default=[],
        help="a LoRA adapter and what requests call it; may be repeated",
    )
    parser.add_argument("--speculator", metavar="REPO[@REVISION]", help="a drafter for SPECULATIVE_CONFIG")
    parser.add_argument("--quantization", help="recorded for the worker (QUANTIZATION)")
    parser.add_argument("--load-format", default="auto", help="which weights are wanted, as LOAD_FORMAT")
    parser.add_argument(
        "--to", metavar="DIR", type=Path, default=Path("/models"), help="the folder (default: /models)"
    )
    parser.add_argument(
        "--volume", action="store_true", help="DIR is on a volume that is mounted now; no manifest is written"
    )
    parser.add_argument(
        "--root", metavar="DIR", type=Path, default=Path("/"), help="where the manifest goes (default: /)"
    )


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Bake; returns the exit code.

    Raises:
        ConfigurationError: the order cannot be met as it is.
        EngineStartError: the hub cannot be reached for too long, there is no room, or a file is damaged.
    """
    from worker_vllm.configuration import manifest
    from worker_vllm.models import bake, download
    from worker_vllm.models.hub import Hub

    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stderr)
    logging.getLogger("worker_vllm").setLevel(logging.INFO)
    parts = _parts(args, environ)
    bake.check_target(args.to, volume=args.volume)
    baked = bake.bake(parts, Hub(environ, args.to.absolute(), _token()), args.load_format)
    for item in baked:
        what = f"{item.part.role} {item.part.name} at {item.commit[:12]}"
        print(f"{what}: {item.files} files, {download.in_bytes(item.bytes)}, {item.path}")
    if args.volume:
        print("a volume has no manifest: set MODEL_NAME on the endpoint; the files are found by it")
        return 0
    bake.remove_locks(args.to)
    path = args.root / manifest.NAME
    bake.write_manifest(path, baked, args.quantization or _set(environ, "QUANTIZATION"))
    print(f"written down in {path}")
    return 0


def _parts(args: argparse.Namespace, environ: Mapping[str, str]) -> list[Any]:
    from worker_vllm.models.wanted import Part

    model = args.model or _set(environ, "MODEL_NAME")
    if not model:
        raise ConfigurationError(["--model is missing: give a repository, as in org/name"])
    parts = [Part("model", model, args.revision or _set(environ, "MODEL_REVISION"), "--model")]
    if tokenizer := args.tokenizer or _set(environ, "TOKENIZER_NAME"):
        revision = args.tokenizer_revision or _set(environ, "TOKENIZER_REVISION")
        parts.append(Part("tokenizer", tokenizer, revision, "--tokenizer"))
    for word in args.adapter:
        title, equals, place = word.partition("=")
        name, revision = _pinned(place if equals else word)
        title = title if equals else name.split("/")[-1]
        parts.append(Part("adapter", name, revision, "--adapter", title))
    if args.speculator:
        parts.append(Part("speculator", *_pinned(args.speculator), "--speculator"))
    return parts


def _pinned(word: str) -> tuple[str, str | None]:
    """A repository and the revision after its @."""
    name, _, revision = word.partition("@")
    return name, revision or None


def _set(environ: Mapping[str, str], name: str) -> str | None:
    text = environ.get(name)
    return None if text is None or values.is_unset(text) else text.strip()


def _token() -> str | None:
    """The build secret, where one is mounted; None leaves it to HF_TOKEN."""
    try:
        return SECRET.read_text(encoding="utf-8").strip() or None
    except OSError:
        return None
