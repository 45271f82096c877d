"""`worker-vllm doctor`: what will go wrong with a model on some GPUs, before anything is paid for."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration
    from worker_vllm.doctor import Finding
    from worker_vllm.errors import StartupFailure
    from worker_vllm.models import ModelFacts
    from worker_vllm.models.wanted import Part, Wanted

_SUMMARY = "say what will go wrong with a model on some GPUs, in seconds"

_DESCRIPTION = """\
Look at a model, its settings and GPUs, and say what will not work, why, and what to do. Nothing is downloaded
but the model's small files, nothing is started, and the GPUs need not be here.
"""

_EPILOG = """\
Everything is read from the environment, as the worker itself does: MODEL_NAME, and every argument of vLLM as
a variable (`worker-vllm settings` shows them). Examples:

  worker-vllm doctor --model Qwen/Qwen3-8B --gpus 1xL4
  MAX_MODEL_LEN=32k worker-vllm doctor --model Qwen/Qwen3-32B --gpus 2xH100
  worker-vllm doctor --this-machine --json

exit codes:
  0   nothing fatal was found
  1   it will not start; the reasons are in the report
  2   the configuration itself cannot be read; the problems are on standard error
docs/doctor.md lists the findings.
"""

EXIT_FATAL = 1


def add_parser(subparsers: Any) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "doctor",
        help=_SUMMARY,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--model", metavar="NAME", help="repository or path (default: MODEL_NAME)")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--gpus", metavar="2xH200", help="how many GPUs of which kind, or of which RunPod pool"
    )
    where.add_argument("--this-machine", action="store_true", help="this machine's GPUs (the default)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Print the diagnosis; returns the exit code.

    Raises:
        ConfigurationError: with every problem of the configuration.
    """
    from worker_vllm import configuration, doctor, models, vllm_table

    if args.model:
        environ = {name: text for name, text in environ.items() if name != "MODEL"}
        environ["MODEL_NAME"] = args.model
    try:
        hardware = doctor.asked_for(args.gpus) if args.gpus else doctor.this_machine(environ)
    except ValueError as error:
        args.parser.error(f"--gpus {args.gpus}: {error}")
    host = configuration.Machine(hardware.platform, gpus=hardware.count, free_memory=hardware.host_memory)
    # importing vLLM, where its record does not fit, makes it log to standard output
    with contextlib.redirect_stdout(sys.stderr):
        table = vllm_table.installed_table()
        reader = models.config_reader(environ)
        resolved = configuration.resolve(environ, table=table, this_machine=host, read_model_config=reader)
        facts, found = _look(resolved, environ)
    diagnosis = doctor.examine(doctor.case_of(resolved, facts, hardware, environ, table), found)
    if args.json:
        print(json.dumps(diagnosis.as_data() | {"warnings": list(resolved.warnings)}, indent=2))
    else:
        print(diagnosis.as_text())
        for warning in resolved.warnings:
            print(f"\nAlso: {warning}")
    return EXIT_FATAL if diagnosis.fatal else 0


def _look(resolved: Configuration, environ: Mapping[str, str]) -> tuple[ModelFacts, list[Finding]]:
    """The model's facts, and what of all that is named cannot be had or cannot be run."""
    from worker_vllm import models
    from worker_vllm.doctor import Finding
    from worker_vllm.errors import StartupFailure
    from worker_vllm.models import support, wanted
    from worker_vllm.models import tokenizer as tokenizers

    asked = wanted.of(resolved)
    found, tokenizer = _not_there(asked, environ)
    try:
        facts = models.look(
            asked.model.name,
            asked.model.revision,
            environ={**environ, "HF_TOKEN": asked.token} if asked.token else environ,
            tokenizer=tokenizer.name if tokenizer else None,
            tokenizer_revision=tokenizer.revision if tokenizer else None,
            adapters={part.title or part.name: part.name for part in asked.others if part.role == "adapter"},
            load_format=asked.load_format,
        )
    except StartupFailure as failure:
        # a hub that cannot be asked from here is no fault of the endpoint's
        found.append(Finding("fatal" if failure.permanent else "warning", "model-not-found", _said(failure)))
        return models.ModelFacts(asked.model.name, "hub"), found
    troubles = support.problems(facts, trust_remote_code=asked.trust_remote_code, overrides=asked.overrides)
    found += [Finding("fatal", "model-unsupported", trouble) for trouble in troubles]
    if not asked.skips_tokenizer and facts.weights.format != "gguf":
        troubles = tokenizers.problems(facts, environ, mode=asked.tokenizer_mode)
        found += [Finding("fatal", "tokenizer", trouble) for trouble in troubles]
    return facts, found


def _not_there(asked: Wanted, environ: Mapping[str, str]) -> tuple[list[Finding], Part | None]:
    """What is wrong with the places of tokenizer and drafter, and the tokenizer's part if it can be had."""
    from worker_vllm.doctor import Finding
    from worker_vllm.errors import StartupFailure
    from worker_vllm.models import resolution

    found: list[Finding] = []
    tokenizer = None
    for part in (part for part in asked.others if part.role != "adapter"):
        try:
            resolution.locator(asked, environ, make_hub=resolution.hub_asked_once).find(part)
        except StartupFailure as failure:
            said = _said(failure)
            said = said if part.variable in said else f"{part.variable}: {said}"
            if part.role == "tokenizer":
                found.append(Finding("fatal" if failure.permanent else "warning", "tokenizer", said))
            else:
                found.append(Finding("fatal" if failure.permanent else "warning", "speculator", said))
        else:
            tokenizer = part if part.role == "tokenizer" else tokenizer
    return found, tokenizer


def _said(failure: StartupFailure) -> str:
    return "; ".join(getattr(failure, "problems", ())) or failure.in_one_line()
