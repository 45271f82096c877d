"""The raw engine of the benchmark, with the real one: what every layer of the worker is measured against."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import pytest

from tests import models
from worker_vllm.bench.report import Report
from worker_vllm.cli import bench

pytestmark = pytest.mark.engine


def test_the_raw_engine_is_measured_like_a_worker(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(
        [
            *("bench", "--target", "raw", "--model", str(models.tiny()), "--logs", str(tmp_path)),
            *("--engine", "enforce_eager=true", "--engine", "max_model_len=128"),
            *("--env", "VLLM_CPU_KVCACHE_SPACE=1"),
            *("--env", "VLLM_LOGGING_LEVEL=INFO"),  # phases are told at this level; other tests may lower it
            *("--mode", "streamed,plain", "--concurrency", "2", "--rounds", "1", "--max-tokens", "6"),
            *("--json", str(tmp_path / "report.json")),
        ]
    )
    exit_code = bench.run(arguments, os.environ)
    assert exit_code == 0, capsys.readouterr().out
    report = Report.from_json((tmp_path / "report.json").read_text(encoding="utf-8"))
    streamed, plain = report.runs
    assert (streamed.load.tokens, plain.load.tokens) == (12, 12)
    assert (streamed.load.chunks_per_request, plain.load.chunks_per_request) == (6, 1)
    assert streamed.usage is not None and streamed.usage.engine_cpu_seconds > 0
    assert [name for name, _ in report.starts[0].phases][-1] == "vllm: engine init"
