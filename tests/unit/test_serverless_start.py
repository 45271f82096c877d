"""Start-up in the main thread, as far as it can be told without a platform."""

from __future__ import annotations

import pytest

from worker_vllm.errors import ConfigurationError, EngineStartError, StartupFailure
from worker_vllm.serverless import start

LIVE = "https://api.runpod.ai/v2/abc/job-take/$ID?gpu=x"
PERMANENT = ConfigurationError(["A=1: expected a word"])


@pytest.mark.parametrize(
    ("failure", "choice", "url", "stays"),
    [
        (PERMANENT, "answer", LIVE, True),
        (EngineStartError("gated model", permanent=True), "answer", LIVE, True),
        (EngineStartError("out of memory"), "answer", LIVE, False),
        (PERMANENT, "exit", LIVE, False),
        (PERMANENT, "", LIVE, False),
        (PERMANENT, "answer", "http://127.0.0.1:8020/v2/local/job-take/$ID?gpu=x", False),
        (PERMANENT, "answer", "http://0.0.0.0:80/v2/IDE/job-take/pod", False),
        (PERMANENT, "answer", "", False),
    ],
)
def test_a_worker_stays_up_for_permanent_faults_on_the_live_platform_only(
    failure: StartupFailure, choice: str, url: str, stays: bool
) -> None:
    environ = {"STARTUP_FAILURE": choice, "RUNPOD_WEBHOOK_GET_JOB": url}
    assert start.stays_up(failure, environ) is stays
