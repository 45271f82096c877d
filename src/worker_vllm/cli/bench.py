"""`worker-vllm bench`: the same load against several targets, side by side."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

_DESCRIPTION = """\
Put the same seeded load on several targets and compare what clients see: tokens per second, time to the
    first token, the pace after it, start-up, CPU and memory. Targets take turns in each round.

targets (--target, repeatable; NAME= in front renames one):
  worker            this worker behind the local platform, with the real SDK between them
  worker:COMMAND    another worker command behind the local platform
  raw               vLLM's AsyncLLM alone, in one Python loop: the bound of what a worker can reach
  serve             `vllm serve`, without platform and SDK
  http(s)://...     something that runs already: an OpenAI base URL (.../v1), or a RunPod endpoint (.../v2/ID)
"""

_EPILOG = """\
examples:
  worker-vllm bench --model models/tiny-random --target worker --target raw --concurrency 16 --rounds 3
  worker-vllm bench --model /models/m --target worker --target "peer=worker:python3 /peer/src/main.py" \\
      --concurrency 64,256 --mode streamed,plain --max-tokens 256 --rtt-ms 20 --engine max_model_len=1024
exit codes: 0, 1 when a --require does not hold or a target fails, 2 for bad arguments
"""

_REQUIREMENT = re.compile(r"(?P<target>[^/]+)/(?P<baseline>[^>]+)>=(?P<least>[\d.]+)")


def add_parser(subparsers: Any) -> None:
    """Add the verb's parser."""
    parser = subparsers.add_parser(
        "bench",
        help="compare workers, the raw engine and vLLM's server under the same load",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _add_target_options(parser)
    _add_load_options(parser)
    output = parser.add_argument_group("output")
    output.add_argument("--json", type=Path, metavar="FILE", help="write the report as JSON")
    output.add_argument("--svg", type=Path, metavar="FILE", help="write the report as a chart")
    output.add_argument(
        "--text", type=Path, metavar="FILE", help="write the table, which is printed in any case"
    )
    output.add_argument(
        "--logs", type=Path, metavar="DIR", help="folder for the processes' logs (default: a new one)"
    )
    output.add_argument("--baseline", metavar="NAME", help="target that ratios refer to (default: the first)")
    output.add_argument(
        "--require",
        action="append",
        default=[],
        metavar="A/B>=X",
        help="exit with 1 unless A's tokens per second are X times B's in every workload (repeatable)",
    )


def _add_target_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("targets")
    group.add_argument(
        "--target", action="append", metavar="TARGET", help="what to measure (default: worker and raw)"
    )
    group.add_argument(
        "--worker-command", metavar="COMMAND", help="what plain `worker` runs (default: this worker)"
    )
    group.add_argument("--model", metavar="DIR", help="model of every target that is started here")
    group.add_argument(
        "--engine",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="engine argument for all (repeatable)",
    )
    group.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="[TARGET:]NAME=VALUE",
        help="environment variable for all, or for one target's processes (repeatable)",
    )
    group.add_argument(
        "--rtt-ms", type=float, default=0.0, metavar="MS", help="round trip from worker to platform (0)"
    )
    group.add_argument(
        "--platform",
        action="append",
        default=[],
        metavar="[TARGET:]OPTION",
        help='further option of `worker-vllm local`, like far:"--rtt-ms 300" (repeatable)',
    )
    order = group.add_mutually_exclusive_group()
    order.add_argument(
        "--one-at-a-time",
        action="store_true",
        help="start each target anew in each round: for machines that hold one only, or to time more starts",
    )
    order.add_argument(
        "--start-together",
        action="store_true",
        help="start all targets side by side: saves time, but no start is timed",
    )
    group.add_argument(
        "--model-name", metavar="NAME", help="model to name to an address (default: its first one)"
    )
    group.add_argument(
        "--key-variable", metavar="NAME", help="environment variable with the key for an address"
    )


def _add_load_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("load (comma lists: one workload per combination)")
    group.add_argument("--route", default="completions", help="completions, chat, native (completions)")
    group.add_argument("--mode", default="streamed", help="streamed, plain (streamed)")
    group.add_argument("--concurrency", default="16", help="requests in flight (16)")
    group.add_argument(
        "--requests", type=int, metavar="N", help="requests of a run (default: as many as in flight)"
    )
    group.add_argument(
        "--rate", type=float, metavar="R", help="Poisson arrivals, R per second (default: one burst)"
    )
    group.add_argument("--prompt-tokens", type=int, default=32, metavar="N", help="length of a prompt (32)")
    group.add_argument("--max-tokens", type=int, default=64, metavar="N", help="length of an answer (64)")
    group.add_argument("--temperature", type=float, default=1.0, metavar="T", help="of the sampling (1)")
    group.add_argument(
        "--poll-ms", type=float, default=100.0, metavar="MS", help="between polls of a native stream (100)"
    )
    group.add_argument("--seed", type=int, default=0, metavar="N", help="of prompts and arrivals (0)")
    group.add_argument(
        "--rounds", type=int, default=3, metavar="N", help="runs of each target and workload (3)"
    )
    group.add_argument("--no-warm-up", action="store_true", help="measure the first run of each workload too")
    group.add_argument(
        "--client-processes", type=int, metavar="N", help="processes that make the load (by cores: 1 to 4)"
    )


def run(args: argparse.Namespace, environ: Mapping[str, str]) -> int:
    """Run the benchmark, print its table and write what was asked for; returns the exit code."""
    from worker_vllm import installed
    from worker_vllm.bench.command import CommandError, carry_out
    from worker_vllm.bench.process import ChildFailed
    from worker_vllm.bench.table import text
    from worker_vllm.bench.targets import TargetError

    try:
        required = [_requirement(rule) for rule in args.require]
        for path in filter(None, (args.json, args.text, args.svg)):
            path.parent.mkdir(parents=True, exist_ok=True)
        with _interrupted_by_sigterm():
            report = carry_out(
                args,
                environ,
                versions=installed.versions("aiohttp", "uvloop"),
                tell=lambda line: print(line, flush=True),
            )
    except CommandError as error:
        print(f"worker-vllm bench: {error}")
        return 2
    except (ChildFailed, TargetError) as error:
        print(f"worker-vllm bench: {error}")
        return 1
    table = text(report)
    print("\n" + table)
    for path, content in (
        (args.json, report.to_json),
        (args.text, lambda: table),
        (args.svg, lambda: _svg(report)),
    ):
        if path is not None:
            path.write_text(content(), encoding="utf-8")
    return _check(report, required)


@contextlib.contextmanager
def _interrupted_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the block like Ctrl-C does, so that what was started is stopped."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _svg(report: Any) -> str:
    from worker_vllm.bench.chart import svg

    return svg(report)


def _requirement(rule: str) -> tuple[str, str, float]:
    from worker_vllm.bench.command import CommandError

    match = _REQUIREMENT.fullmatch(rule)
    if match is None:
        raise CommandError(f"--require {rule}: expected A/B>=X, like worker/peer>=3")
    return match["target"], match["baseline"], float(match["least"])


def _check(report: Any, required: list[tuple[str, str, float]]) -> int:
    from worker_vllm.bench.report import tokens_per_second

    failed = 0
    for target, baseline, least in required:
        for workload in report.workloads:
            ratio = report.ratio(target, baseline, workload.label, tokens_per_second)
            if ratio is None or ratio < least:
                failed += 1
                shown = "no figure" if ratio is None else f"{ratio:.2f}"
                print(f"required: {target}/{baseline} >= {least:g}, {workload.label}: {shown}")
    return 1 if failed or any(run.load.failed for run in report.runs) else 0
