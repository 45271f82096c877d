"""Log lines: one per event, whatever comes from outside."""

from __future__ import annotations

import json
import logging

import pytest

from worker_vllm.engine.record import JobRecord
from worker_vllm.serverless import log


def record() -> JobRecord:
    return JobRecord(
        "j1",
        "/v1/chat/completions",
        received_at=10.0,
        scheduled_at=10.25,
        prompt_tokens=7,
        output_tokens=3,
        first_token_at=10.5,
        finished_at=12.0,
        finish_reason="stop",
    )


def test_a_jobs_line_holds_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text", "info")
    log.job_ended(record())
    assert capsys.readouterr().out.endswith(
        "job j1 route=/v1/chat/completions prompt_tokens=7 output_tokens=3 queue=0.25 ttft=0.5 total=2.0 "
        "finish=stop error=- error_type=-\n"
    )


def test_json_lines_hold_the_same_as_values_with_the_request_id_that_runpod_knows(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.configure("json", "info")
    log.job_ended(record())
    (line,) = capsys.readouterr().out.splitlines()
    entry = json.loads(line)
    assert entry["requestId"] == "j1"
    assert (entry["level"], entry["queue"], entry["ttft"], entry["total"]) == ("INFO", 0.25, 0.5, 2.0)
    assert (entry["prompt_tokens"], entry["output_tokens"]) == (7, 3)
    assert (entry["finish"], entry["error"]) == ("stop", None)


def test_a_job_that_never_began_shows_dashes(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text", "info")
    log.job_ended(JobRecord("j2", received_at=1.0, finished_at=1.0, error_code=400))
    assert "queue=- ttft=- total=0.0 finish=- error=400" in capsys.readouterr().out


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_every_record_is_one_line_or_marked_as_its_continuation(
    capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    log.configure(log_format, "info")  # type: ignore[arg-type]
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("worker_vllm.anything").exception("it failed\nINFO a forged line")
    first, *rest = capsys.readouterr().out.splitlines()
    assert "it failed" in first
    assert all(line.startswith("    ") for line in rest)
    assert bool(rest) == (log_format == "text")


def test_the_level_is_obeyed_and_configuring_again_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("text", "info")
    log.configure("text", "error")
    logging.getLogger("worker_vllm.x").warning("hidden")
    logging.getLogger("worker_vllm.x").error("shown")
    assert capsys.readouterr().out.count("\n") == 1


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("abc-1.2", "abc-1.2"),
        ("a b/c\\d", "a_b_c_d"),
        ("a\nb\x00", "a_b_"),
        ("é\u2028", "__"),
        ("", "-"),
        (None, "None"),
    ],
)
def test_ids_become_one_safe_word(given: object, shown: str) -> None:
    assert log.one_line(given, 128) == shown


def test_routes_keep_their_slashes_and_nothing_else() -> None:
    assert log.one_line_route("/v1/chat/completions") == "/v1/chat/completions"
    assert log.one_line_route("/v1/a b\n?x=1") == "/v1/a_b_?x=1"
    assert len(log.one_line_route("/" + "x" * 10_000)) <= log.MAX_ROUTE_LENGTH
