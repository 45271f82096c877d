"""From the arguments of `worker-vllm bench` to a report."""

from __future__ import annotations

import argparse
import itertools
import os
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from worker_vllm.bench import machine, session
from worker_vllm.bench.clients import Clients
from worker_vllm.bench.engine_settings import EngineSettings
from worker_vllm.bench.report import Report
from worker_vllm.bench.targets import (
    AddressTarget,
    RawTarget,
    ServeTarget,
    Target,
    WorkerTarget,
)
from worker_vllm.bench.workload import Route, Workload

DEFAULT_TARGETS = ("worker", "raw")
_LEAST_CONCURRENCY = 300
"""A worker's own limit is set to what the peer documents, well above the load's: the peer's default (30) is
below a burst, and the SDK stalls when it is full."""

_CHILD_SETTINGS = {
    # The SDK's checks want a GPU benchmark and the internet; its default log level prints every chunk.
    "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
    "RUNPOD_SKIP_GPU_CHECK": "true",
    "RUNPOD_LOG_LEVEL": "INFO",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}


class CommandError(Exception):
    """Arguments that ask for what cannot be."""


def carry_out(
    args: argparse.Namespace, environ: Mapping[str, str], *, versions: dict[str, str], tell: session.Tell
) -> Report:
    """Do what the command line asks for.

    Args:
        versions: of the installed packages that a figure depends on.

    Raises:
        CommandError: the arguments do not fit together.
        ChildFailed, TargetError: a target failed. Whatever was started is stopped in any case.
    """
    workloads = workloads_of(args)
    logs = _log_folder(args.logs)
    tell(f"logs: {logs}")
    base = _base_environment(environ, workloads)
    targets = targets_of(args, environ, base, logs)
    baseline = args.baseline or targets[0].name
    if baseline not in {target.name for target in targets}:
        raise CommandError(f"--baseline {baseline}: no target has that name")
    count = args.client_processes or max(1, min(4, (os.cpu_count() or 1) // 4))
    plan = session.Plan(
        workloads=workloads,
        rounds=args.rounds,
        warm_up=not args.no_warm_up,
        order="alone" if args.one_at_a_time else "at once" if args.start_together else "in turn",
    )
    with Clients.started(count, base, logs) as clients:
        starts, runs = session.carry_out(plan, targets, clients, tell)
    return Report(
        settings={**_settings(args, targets), "order": plan.order, "client_processes": count},
        versions=versions,
        machine=machine.machine(environ),
        baseline=baseline,
        targets=tuple(target.name for target in targets),
        workloads=tuple(workloads),
        starts=tuple(starts),
        runs=tuple(runs),
    )


def workloads_of(args: argparse.Namespace) -> list[Workload]:
    """One workload per combination of the comma lists. Raises CommandError for a word that means nothing."""
    routes = [_one_of(word, get_args(Route), "--route") for word in _words(args.route)]
    modes = [_one_of(word, ("streamed", "plain"), "--mode") for word in _words(args.mode)]
    try:
        crowds = [int(word) for word in _words(args.concurrency)]
    except ValueError:
        raise CommandError(f"--concurrency {args.concurrency}: expected whole numbers, like 64,256") from None
    if min(crowds, default=0) < 1 or args.rounds < 1 or (args.requests is not None and args.requests < 1):
        raise CommandError("--concurrency, --requests and --rounds must be at least 1")
    if args.rate is not None and args.rate <= 0:
        raise CommandError(f"--rate {args.rate}: must be above 0")
    return [
        Workload(
            route=route,  # type: ignore[arg-type]
            streamed=mode == "streamed",
            concurrency=crowd,
            requests=args.requests or crowd,
            prompt_tokens=args.prompt_tokens,
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            rate=args.rate,
            seed=args.seed,
            poll_seconds=args.poll_ms / 1000,
        )
        for route, mode, crowd in itertools.product(routes, modes, crowds)
    ]


def targets_of(
    args: argparse.Namespace, environ: Mapping[str, str], base: Mapping[str, str], logs: Path
) -> list[Target]:
    """The targets that the command line names. Raises CommandError for one that makes no sense."""
    named = [split_target(given) for given in args.target or DEFAULT_TARGETS]
    names = [name for name, _ in named]
    if len(set(names)) < len(names):
        raise CommandError(f"--target: two targets have the same name ({', '.join(names)})")
    variables, options = _variables(args.env, names), _platform_options(args, names)
    return [
        _target(name, kind, args, environ, {**base, **variables[name]}, options[name], logs)
        for name, kind in named
    ]


def split_target(given: str) -> tuple[str, str]:
    """Name and kind of one `--target`. A `=` inside a command or an address is not a name's."""
    head, equals, rest = given.partition("=")
    if equals and not set(head) & set(":/ "):
        return head, rest
    return given.partition(":")[0] if "://" not in given else given, given


def _target(
    name: str,
    kind: str,
    args: argparse.Namespace,
    environ: Mapping[str, str],
    variables: Mapping[str, str],
    options: Sequence[str],
    logs: Path,
) -> Target:
    if "://" in kind and not kind.startswith("worker:"):
        key = environ.get(args.key_variable) if args.key_variable else None
        return AddressTarget(name, kind, model=args.model_name, key=key, logs=logs)
    if not args.model:
        raise CommandError(f"--target {name}: --model is needed to start it")
    engine = EngineSettings(model=args.model, arguments=dict(_pair(one, "--engine") for one in args.engine))
    if kind == "raw":
        return RawTarget(name, engine, variables, logs)
    if kind == "serve":
        return ServeTarget(name, engine, variables, logs)
    head, _, command = kind.partition(":")
    if head != "worker":
        raise CommandError(f"--target {kind}: expected worker, worker:COMMAND, raw, serve or an address")
    return WorkerTarget(
        name, command or args.worker_command, engine, variables, logs, platform_options=options
    )


def _base_environment(environ: Mapping[str, str], workloads: Iterable[Workload]) -> dict[str, str]:
    limit = max(_LEAST_CONCURRENCY, *(workload.concurrency for workload in workloads))
    # Children run `-m worker_vllm…` from wherever they are, so the package's own folder goes along.
    source = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, (source, environ.get("PYTHONPATH", ""))))
    return {**environ, **_CHILD_SETTINGS, "MAX_CONCURRENCY": str(limit), "PYTHONPATH": path}


def _settings(args: argparse.Namespace, targets: Iterable[Target]) -> dict[str, Any]:
    return {
        "model": args.model,
        "engine": dict(_pair(one, "--engine") for one in args.engine),
        "targets": dict(map(split_target, args.target or DEFAULT_TARGETS)),
        "env": [given.partition("=")[0] for given in args.env],
        "rtt_ms": args.rtt_ms,
        "rounds": args.rounds,
        "inside": [target.name for target in targets if isinstance(target, RawTarget)],
    }


def _log_folder(given: Path | None) -> Path:
    if given is None:
        return Path(tempfile.mkdtemp(prefix="worker-vllm-bench-"))
    given.mkdir(parents=True, exist_ok=True)
    return given


def _variables(given: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Each target's own environment variables: those for all, then those for it."""
    found: dict[str, dict[str, str]] = {name: {} for name in names}
    for one in sorted(given, key=lambda one: ":" in one.partition("=")[0]):
        name, value = _pair(one, "--env")
        target, _, variable = name.rpartition(":")
        for owner in _owners(target, found, f"--env {name}"):
            found[owner][variable] = value
    return found


def _platform_options(args: argparse.Namespace, names: Iterable[str]) -> dict[str, list[str]]:
    """Each target's arguments for `worker-vllm local`. A later one counts, so a target's own come last."""
    found = {name: ["--rtt-ms", f"{args.rtt_ms:g}"] for name in names}
    for given in sorted(args.platform, key=lambda one: not one.startswith("-")):
        target, _, option = ("", "", given) if given.startswith("-") else given.partition(":")
        for owner in _owners(target, found, f"--platform {given}"):
            found[owner] += shlex.split(option)
    return found


def _owners(target: str, known: Mapping[str, object], option: str) -> list[str]:
    """The targets that an option's prefix means: one, or all without a prefix."""
    if not target:
        return list(known)
    if target not in known:
        raise CommandError(f"{option}: no target is called {target}")
    return [target]


def _pair(given: str, option: str) -> tuple[str, str]:
    name, equals, value = given.partition("=")
    if not name or not equals:
        raise CommandError(f"{option} {given}: expected NAME=VALUE")
    return name, value


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _one_of(word: str, allowed: Iterable[str], option: str) -> str:
    known = tuple(allowed)
    if word not in known:
        raise CommandError(f"{option} {word}: expected {', '.join(known)}")
    return word
