"""The verb's arguments: which workloads and targets they mean."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

import pytest

from worker_vllm.bench.command import CommandError, split_target, targets_of, workloads_of
from worker_vllm.bench.engine_settings import EngineSettings
from worker_vllm.bench.targets import (
    AddressTarget,
    RawTarget,
    ServeTarget,
    Target,
    WorkerTarget,
)
from worker_vllm.cli import bench


def _arguments(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", *given])


def _targets(*given: str, environ: Mapping[str, str] | None = None) -> list[Target]:
    return targets_of(_arguments("--model", "m", *given), environ or {}, {"BASE": "1"}, Path())


def test_comma_lists_are_combined() -> None:
    workloads = workloads_of(
        _arguments("--mode", "streamed,plain", "--concurrency", "64,256", "--route", "chat")
    )
    assert [workload.label for workload in workloads] == [
        "chat streamed 64",
        "chat streamed 256",
        "chat plain 64",
        "chat plain 256",
    ]


def test_a_run_has_as_many_requests_as_it_may_have_in_flight() -> None:
    assert [one.requests for one in workloads_of(_arguments("--concurrency", "4,8"))] == [4, 8]
    assert [one.requests for one in workloads_of(_arguments("--concurrency", "4", "--requests", "100"))] == [
        100
    ]


@pytest.mark.parametrize(
    "given",
    [
        ("--mode", "slow"),
        ("--route", "embeddings"),
        ("--concurrency", "many"),
        ("--concurrency", "0"),
        ("--rounds", "0"),
        ("--rate", "0"),
        ("--requests", "0"),
    ],
)
def test_a_load_that_cannot_be_is_refused_by_name(given: tuple[str, str]) -> None:
    with pytest.raises(CommandError, match=given[0]):
        workloads_of(_arguments(*given))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("worker", ("worker", "worker")),
        ("raw", ("raw", "raw")),
        ("ours=worker", ("ours", "worker")),
        ("peer=worker:python3 main.py --a=b", ("peer", "worker:python3 main.py --a=b")),
        ("worker:env A=B python3 main.py", ("worker", "worker:env A=B python3 main.py")),
        ("live=https://h/v2/id?a=b", ("live", "https://h/v2/id?a=b")),
        ("https://h/v1?a=b", ("https://h/v1?a=b", "https://h/v1?a=b")),
    ],
)
def test_a_targets_name_stands_before_an_equals_sign(given: str, expected: tuple[str, str]) -> None:
    assert split_target(given) == expected


def test_each_kind_of_target_can_be_named() -> None:
    targets = _targets(
        "--target", "worker", "--target", "peer=worker:python3 p.py", "--target", "raw", "--target", "serve",
        "--target", "live=https://h/v2/id",
    )  # fmt: skip
    assert [type(target) for target in targets] == [
        WorkerTarget,
        WorkerTarget,
        RawTarget,
        ServeTarget,
        AddressTarget,
    ]
    assert [target.name for target in targets] == ["worker", "peer", "raw", "serve", "live"]


def test_a_worker_and_the_raw_engine_are_compared_by_default() -> None:
    assert [target.name for target in _targets()] == ["worker", "raw"]


def test_a_started_target_needs_a_model() -> None:
    with pytest.raises(CommandError, match="--model is needed"):
        targets_of(_arguments("--target", "raw"), {}, {}, Path())


@pytest.mark.parametrize(
    "given",
    [
        ("--target", "tgi"),
        ("--target", "raw", "--target", "raw"),
        ("--engine", "max_model_len"),
        ("--env", "peer:A=1"),
        ("--env", "novalue"),
        ("--platform", "peer:--rtt-ms 5"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(given: tuple[str, ...]) -> None:
    with pytest.raises(CommandError):
        _targets(*given)


def test_a_bad_requirement_is_refused_before_anything_starts(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.run(_arguments("--require", "worker is fast", "--model", "m"), {}) == 2
    assert "expected A/B>=X" in capsys.readouterr().out


def test_engine_arguments_reach_each_kind_of_target_in_its_own_form() -> None:
    engine = EngineSettings(
        model="m",
        arguments={
            "max_model_len": "512",
            "enforce_eager": "true",
            "async_scheduling": "false",
            "dtype": "auto",
        },
    )
    assert engine.environment()["MAX_MODEL_LEN"] == "512"
    assert engine.environment()["ENFORCE_EAGER"] == "true"
    assert engine.fields() == {
        "model": "m",
        "served_model_name": "bench",
        "max_model_len": 512,
        "enforce_eager": True,
        "async_scheduling": False,
        "dtype": "auto",
    }
    flags = engine.flags()
    assert flags[flags.index("--max-model-len") + 1] == "512"
    assert "--enforce-eager" in flags and "--no-async-scheduling" in flags


def test_variables_and_platform_options_can_be_one_targets_own() -> None:
    near, far = _targets(
        *("--target", "near=worker", "--target", "far=worker", "--rtt-ms", "20"),
        *("--platform", "far:--rtt-ms 300", "--platform=--strict"),
        *("--env", "far:A=2", "--env", "A=1"),
    )
    assert isinstance(near, WorkerTarget) and isinstance(far, WorkerTarget)
    assert near.platform_options == ["--rtt-ms", "20", "--strict"]
    assert far.platform_options == ["--rtt-ms", "20", "--strict", "--rtt-ms", "300"]
    assert (near.environ["A"], far.environ["A"], far.environ["BASE"]) == ("1", "2", "1")
