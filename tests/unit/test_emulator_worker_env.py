"""What a worker finds in its environment, and which of its lines are shown."""

from __future__ import annotations

import dataclasses
import io

from worker_vllm.emulator.policy import Policy
from worker_vllm.emulator.worker_env import no_proxy, worker_environment
from worker_vllm.emulator.worker_output import WorkerOutput

URL = "http://127.0.0.1:1/v2/local"


def environment(
    base: dict[str, str] | None = None, *, hub_form: bool = False, **choices: object
) -> dict[str, str]:
    return worker_environment(
        base or {},
        url=URL,
        worker_id="worker-0",
        worker_key="K",
        policy=dataclasses.replace(Policy(), **choices),
        hub_form=hub_form,
    )


def test_the_sdk_is_wired_as_on_the_live_service() -> None:
    found = environment()
    assert found["RUNPOD_WEBHOOK_GET_JOB"] == f"{URL}/job-take/$ID?gpu=local"
    assert found["RUNPOD_WEBHOOK_POST_OUTPUT"] == f"{URL}/job-done/$RUNPOD_POD_ID/$ID?gpu=local"
    assert found["RUNPOD_WEBHOOK_POST_STREAM"] == f"{URL}/job-stream/$RUNPOD_POD_ID/$ID?gpu=local"
    assert found["RUNPOD_WEBHOOK_PING"] == f"{URL}/ping/$RUNPOD_POD_ID?gpu=local"
    assert found["RUNPOD_PING_INTERVAL"] == "4000"
    assert (found["RUNPOD_POD_ID"], found["RUNPOD_AI_API_KEY"]) == ("worker-0", "K")
    assert "RUNPOD_ENDPOINT_ID" not in found


def test_the_sdk_s_checks_that_need_a_gpu_or_the_internet_are_off_unless_wanted() -> None:
    assert environment()["RUNPOD_SKIP_AUTO_SYSTEM_CHECKS"] == "true"
    assert environment()["RUNPOD_SKIP_GPU_CHECK"] == "true"
    assert environment({"RUNPOD_SKIP_GPU_CHECK": "false"})["RUNPOD_SKIP_GPU_CHECK"] == "false"


def test_the_environment_is_passed_on_except_for_what_would_lead_elsewhere() -> None:
    base = {"MODEL_NAME": "m", "RUNPOD_WEBHOOK_PING": "http://elsewhere", "RUNPOD_REALTIME_PORT": "1"}
    found = environment(base)
    assert found["MODEL_NAME"] == "m"
    assert found["RUNPOD_WEBHOOK_PING"].startswith(URL)
    assert "RUNPOD_REALTIME_PORT" not in found


def test_the_hub_s_form_has_no_question_mark_no_stream_and_no_ping() -> None:
    found = environment({"RUNPOD_WEBHOOK_POST_STREAM": "x", "RUNPOD_WEBHOOK_PING": "x"}, hub_form=True)
    assert found["RUNPOD_WEBHOOK_GET_JOB"] == f"{URL}/job-take/worker-0"
    assert "RUNPOD_WEBHOOK_POST_STREAM" not in found
    assert "RUNPOD_WEBHOOK_PING" not in found
    assert found["RUNPOD_ENDPOINT_BASE_URL"] == URL


def test_the_endpoint_id_can_be_given_as_on_the_live_service() -> None:
    assert environment(inject_endpoint_id=True)["RUNPOD_ENDPOINT_ID"] == "local"


def test_a_proxy_is_not_asked_for_this_machine() -> None:
    assert no_proxy({}) == {}
    assert no_proxy({"HTTP_PROXY": "http://p", "NO_PROXY": "a.example"})["no_proxy"] == (
        "a.example,127.0.0.1,localhost"
    )
    assert environment({"http_proxy": "http://p"})["NO_PROXY"] == "127.0.0.1,localhost"


def test_every_line_is_shown_behind_its_worker_s_name() -> None:
    terminal = io.StringIO()
    WorkerOutput(terminal).line("worker-0", "hello")
    assert terminal.getvalue() == "worker-0 | hello\n"


def test_brief_shows_phases_and_trouble_and_logs_the_rest() -> None:
    terminal, log = io.StringIO(), io.StringIO()
    output = WorkerOutput(terminal, log, brief=True)
    lines = [
        "2026-01-01 INFO worker_vllm.phases: phase: weights 3.2 s",
        "INFO chatter about 0 errors",
        "WARNING 11-29 something",
        '{"level": "ERROR", "message": "x"}',
        "Traceback (most recent call last):",
        "ValueError: no",
        "ERROR " + "x" * 500,
    ]
    for line in lines:
        output.line("worker-0", line)
    shown = terminal.getvalue().splitlines()
    assert shown[:-1] == ["worker-0 | phase: weights 3.2 s", *(f"worker-0 | {line}" for line in lines[3:-1])]
    assert shown[-1].endswith("xx…")
    assert len(shown[-1]) < 200
    assert log.getvalue().count("\n") == len(lines)
