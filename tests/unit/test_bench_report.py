"""The report: JSON and back, its medians and ratios, the table and the chart."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import pytest

from worker_vllm.bench.chart import panels, svg
from worker_vllm.bench.report import Report, Run, tokens_per_second
from worker_vllm.bench.startup import Start
from worker_vllm.bench.stats import RequestTimes, summarize
from worker_vllm.bench.table import align, text
from worker_vllm.bench.usage import Usage
from worker_vllm.bench.workload import Workload

_WORKLOAD = Workload(concurrency=2, requests=2)


def _run(target: str, round_number: int, speed: float, **changes: object) -> Run:
    times = RequestTimes(
        index=0, sent=0.0, first=0.1, last=1.0, gaps=(0.1, 0.2), chunks=4, tokens=int(speed), error=None
    )
    usage = Usage(
        seconds=1.0,
        frontend_cpu_seconds=0.002,
        engine_cpu_seconds=0.5,
        platform_cpu_seconds=0.1,
        frontend_peak_bytes=700_000_000,
        tree_peak_bytes=2_000_000_000,
        frontend_start_bytes=690_000_000,
        frontend_end_bytes=700_000_000,
    )
    run = Run(
        target=target,
        workload=_WORKLOAD.label,
        round_number=round_number,
        load=summarize([times], streamed=True),
        client_busy=0.1,
        usage=usage,
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def _report(*runs: Run, targets: tuple[str, ...] = ("worker", "peer")) -> Report:
    return Report(
        settings={"model": "m", "inside": ["raw"], "engine": {"dtype": "bfloat16"}},
        versions={"vllm": "0.32.0"},
        machine={"cpu": "x", "cores": 2},
        baseline="peer",
        targets=targets,
        workloads=(_WORKLOAD,),
        starts=(Start("worker", 9.0, 10.0, (("load", 3.0),)), Start("peer", 19.0, 20.0, ())),
        runs=runs,
    )


@pytest.fixture
def report() -> Report:
    return _report(
        _run("worker", 0, 300),
        _run("peer", 0, 100),
        _run("worker", 1, 900),
        _run("peer", 1, 200),
        _run("worker", 2, 50),
    )


def test_a_report_survives_json(report: Report) -> None:
    without_usage = replace(report, runs=(*report.runs, _run("peer", 2, 10, usage=None)))
    assert Report.from_json(without_usage.to_json()) == without_usage


def test_a_ratio_compares_runs_of_the_same_round(report: Report) -> None:
    """300/100 and 900/200; round 2 has no partner."""
    assert report.ratio("worker", "peer", _WORKLOAD.label, tokens_per_second) == pytest.approx(3.75)


def test_a_ratio_to_a_target_without_runs_is_unknown(report: Report) -> None:
    assert report.ratio("worker", "nobody", _WORKLOAD.label, tokens_per_second) is None


def test_cpu_is_counted_per_token(report: Report) -> None:
    assert report.runs[0].frontend_microseconds_per_token == pytest.approx(0.002 / 300 * 1e6)


def test_the_table_has_a_row_per_target_and_the_ratio(report: Report) -> None:
    lines = text(report).splitlines()
    assert any(line.startswith("worker") and " 300 " in line and "3.75" in line for line in lines)
    assert any(line.startswith("peer") and "1.00" in line for line in lines)


def test_the_table_names_phases_and_the_settings(report: Report) -> None:
    table = text(report)
    assert "load 3.0" in table and "engine=dtype:bfloat16" in table and "vllm 0.32.0" in table


def test_a_failed_request_is_a_warning() -> None:
    failed = RequestTimes(index=0, sent=0, first=None, last=0, gaps=(), chunks=0, tokens=0, error="HTTP 500")
    report = _report(_run("worker", 0, 1, load=summarize([failed], streamed=True)))
    assert any("HTTP 500" in warning for warning in report.warnings())


def test_a_busy_client_is_a_warning_unless_it_is_the_target_itself() -> None:
    report = _report(
        _run("worker", 0, 9, client_busy=0.97), _run("raw", 0, 9, client_busy=0.99), targets=("worker", "raw")
    )
    assert [warning for warning in report.warnings() if "client" in warning] == [
        f"worker, {_WORKLOAD.label}, round 1: a client process was busy 97% of the time"
    ]


def test_a_busy_platform_is_a_warning() -> None:
    usage = _run("worker", 0, 9).usage
    assert usage is not None
    report = _report(_run("worker", 0, 9, usage=replace(usage, platform_cpu_seconds=0.95)))
    assert any("platform was busy 95%" in warning for warning in report.warnings())


def test_the_chart_is_well_formed_and_has_a_bar_per_figure(report: Report) -> None:
    picture = ElementTree.fromstring(svg(report))
    assert [panel.title.split(",")[0].split(" (")[0] for panel in panels(report)] == [
        "Tokens per second",
        "Time to first token",
        "Process start to first token",
    ]
    drawn = picture.findall("{http://www.w3.org/2000/svg}rect")
    # background, a legend entry per target, and a bar per target in each of three panels
    assert len(drawn) == 1 + 2 + 6


def test_the_chart_escapes_names() -> None:
    report = _report(_run("a<b", 0, 5), targets=("a<b",))
    ElementTree.fromstring(svg(report))


def test_columns_are_aligned() -> None:
    assert align([["name", "x"], ["a", "100"]]) == "name    x\na     100"


def test_a_report_can_be_written_and_read_as_a_file(report: Report, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(report.to_json(), encoding="utf-8")
    assert Report.from_json((tmp_path / "r.json").read_text(encoding="utf-8")) == report
