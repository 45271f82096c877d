"""`worker-vllm settings`: the effective configuration, each value with its source; and the files made from
it."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from worker_vllm.configuration import Configuration, Effective
    from worker_vllm.configuration.secrets import Redactor

_SUMMARY = "show the effective configuration, each value with its source"

_DESCRIPTION = """\
Show what the environment, the configuration file and VLLM_EXTRA_ARGS amount to: every value that differs from
the default, with what set it, and what looks wrong. Nothing is started.
"""

_EPILOG = """\
Settings are environment variables. MODEL_NAME is the only one that must be set; any argument of vLLM is a
variable too, in upper case: --max-num-seqs is MAX_NUM_SEQS. Exit code 2: the configuration cannot work; the
problems are on standard error. docs/configuration.md tells the whole.
"""

_SHOWN_LENGTH = 60


def add_parser(subparsers: Any) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "settings",
        help=_SUMMARY,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", action="store_true", help="show the values that keep their default, too")
    parser.add_argument(
        "--docs", action="store_true", help="write docs/configuration.md and docs/upgrading.md instead"
    )
    parser.add_argument(
        "--hub",
        action="store_true",
        help="write worker-config.json, .runpod/hub.json and .runpod/tests.json instead",
    )
    parser.add_argument(
        "--root",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="where --docs and --hub write (default: here)",
    )


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Show the settings, or write the files; returns the exit code.

    Raises:
        ConfigurationError: with every problem of the configuration.
    """
    if args.docs or args.hub:
        return _write(args)
    from worker_vllm import configuration, models

    # importing vLLM, where its record does not fit, makes it log to standard output
    with contextlib.redirect_stdout(sys.stderr):
        resolved = configuration.resolve(environ, read_model_config=models.config_reader(environ))
    shown = _as_json(resolved, everything=args.all)
    print(json.dumps(shown, indent=2, ensure_ascii=False) if args.json else _as_text(resolved, shown))
    return 0


def _write(args: argparse.Namespace) -> int:
    from worker_vllm import forms, vllm_table

    with contextlib.redirect_stdout(sys.stderr):
        table = vllm_table.installed_table()
    files: dict[PurePosixPath, str] = {}
    if args.docs:
        files |= forms.documents(table)
    if args.hub:
        files |= forms.hub_files(table)
    for name, text in files.items():
        path = args.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    return 0


def _as_json(resolved: Configuration, *, everything: bool) -> dict[str, Any]:
    def group(effective: Mapping[str, Effective]) -> dict[str, Any]:
        return {
            name: _entry(value, resolved.redactor)
            for name, value in effective.items()
            if everything or value.source != "default"
        }

    return {
        "worker": group(resolved.worker_effective),
        "engine": group(resolved.engine),
        "frontend": group(resolved.frontend),
        "warnings": list(resolved.warnings),
    }


def _entry(effective: Effective, redactor: Redactor) -> dict[str, Any]:
    entry = {"value": redactor.data(effective.shown()), "source": effective.source}
    return entry | ({"variable": effective.variable} if effective.variable else {})


def _as_text(resolved: Configuration, shown: Mapping[str, Any]) -> str:
    titles = {
        "worker": "The worker's own settings",
        "engine": "vLLM's engine",
        "frontend": "vLLM's front end",
    }
    lines = [f"Clients call the model {' or '.join(resolved.served_model_names)}."]
    for key, title in titles.items():
        lines += ["", title, *_rows(shown[key])]
    lines += ["", "Warnings", *(f"  {warning}" for warning in shown["warnings"] or ["none"])]
    return "\n".join(lines)


def _rows(entries: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    if not entries:
        yield "  everything at its default (--all shows it)"
        return
    cells = [(name, _shown(entry["value"]), _origin(entry)) for name, entry in entries.items()]
    widths = [max(len(cell[column]) for cell in cells) for column in (0, 1)]
    for name, value, origin in cells:
        yield f"  {name:<{widths[0]}}  {value:<{widths[1]}}  {origin}".rstrip()


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False) if not isinstance(value, str) else value
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_LENGTH else f"{text[: _SHOWN_LENGTH - 1]}…"


def _origin(entry: Mapping[str, Any]) -> str:
    words: Iterable[str] = (entry["source"].replace("_", " "), entry.get("variable", ""))
    return " ".join(filter(None, words))
