"""What the SDK is told through the environment before it is imported."""

from __future__ import annotations

import logging

import pytest

from worker_vllm.errors import ConfigurationError
from worker_vllm.serverless import sdk


def environ(**more: str) -> dict[str, str]:
    return {"RUNPOD_WEBHOOK_GET_JOB": "http://127.0.0.1/job-take/$ID?x=1", **more}


def test_the_sdk_logs_at_info_and_leaves_cuda_alone() -> None:
    environment = environ()
    sdk.prepare(environment)
    assert environment["RUNPOD_LOG_LEVEL"] == "INFO"
    assert environment["RUNPOD_SKIP_GPU_CHECK"] == "true"
    assert environment["RUNPOD_SKIP_AUTO_SYSTEM_CHECKS"] == "true"


@pytest.mark.parametrize("name", ["RUNPOD_LOG_LEVEL", "RUNPOD_DEBUG_LEVEL"])
def test_a_log_level_of_the_users_own_stays(name: str, caplog: pytest.LogCaptureFixture) -> None:
    environment = environ(**{name: "debug"})
    before = dict(environment)
    sdk.prepare(environment)
    assert before.items() <= environment.items()
    assert environment.get("RUNPOD_LOG_LEVEL") == before.get("RUNPOD_LOG_LEVEL")
    assert "prints prompts and answers" in caplog.text


def test_the_users_choice_of_checks_stays() -> None:
    environment = environ(RUNPOD_SKIP_GPU_CHECK="false")
    sdk.prepare(environment)
    assert environment["RUNPOD_SKIP_GPU_CHECK"] == "false"


def test_a_level_that_the_sdk_does_not_know_is_named(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    with pytest.raises(ConfigurationError, match="RUNPOD_LOG_LEVEL='LOUD'"):
        sdk.prepare(environ(RUNPOD_LOG_LEVEL="LOUD"))


def test_without_a_platform_it_says_how_to_get_one() -> None:
    with pytest.raises(ConfigurationError, match="worker-vllm local"):
        sdk.prepare({})


def test_an_sdk_that_writes_prompts_to_disk_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk.metadata, "version", lambda _: "1.10.0")
    with pytest.raises(ConfigurationError, match="writes prompts to disk"):
        sdk.prepare(environ())
