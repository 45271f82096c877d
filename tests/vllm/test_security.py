"""What a job's input must not reach, each tried from a job on the real engine."""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.fuzz.driving import Worker, check, error_of
from worker_vllm.engine.lifecycle import EngineHost
from worker_vllm.engine.routes import OPERATOR_ROUTES
from worker_vllm.serverless import log

SECRET = "xyzzy-plugh-4711"
USER = {"role": "user", "content": "hi"}
CHAT = {"messages": [USER], "max_tokens": 1}


def route(path: str, body: dict[str, Any]) -> dict[str, Any]:
    return {"openai_route": path, "openai_input": body}


async def refusal(host: EngineHost, job: Any) -> dict[str, Any]:
    error = check(await Worker(host).run(job))
    assert error is not None, "the job was answered"
    return error


TEMPLATED = {
    "native": {"messages": [USER], "chat_template": "{{ 7 * 7 }}"},
    "native arguments": {"messages": [USER], "chat_template_kwargs": {"chat_template": "{{ 7 * 7 }}"}},
    "chat": route("/v1/chat/completions", {**CHAT, "chat_template": "{{ 7 * 7 }}"}),
    "chat arguments": route(
        "/v1/chat/completions", {**CHAT, "chat_template_kwargs": {"chat_template": "{{ 7 * 7 }}"}}
    ),
    "extra_body": route("/v1/chat/completions", {**CHAT, "extra_body": {"chat_template": "{{ 7 * 7 }}"}}),
    "tokenize": route("/tokenize", {"messages": [USER], "chat_template": "{{ 7 * 7 }}"}),
    "messages": route("/v1/messages", {**CHAT, "chat_template_kwargs": {"chat_template": "x"}}),
    "invocations": route("/invocations", {**CHAT, "chat_template": "{{ 7 * 7 }}"}),
}


@pytest.mark.parametrize("name", TEMPLATED)
async def test_a_chat_template_is_the_operators(tiny: EngineHost, name: str) -> None:
    assert "chat_template" in (await refusal(tiny, TEMPLATED[name]))["message"]


@pytest.mark.parametrize(
    "field", ["mm_processor_kwargs", "media_io_kwargs", "kv_transfer_params", "ec_transfer_params"]
)
async def test_processors_and_transfers_are_the_operators(tiny: EngineHost, field: str) -> None:
    value = {"remote_host": "169.254.169.254", "trust_remote_code": True}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"):
        for body in ({**CHAT, field: value}, {**CHAT, "vllm_xargs": {field: "x"}}):
            assert field in (await refusal(tiny, route(path, body)))["message"]
    token_route = {"token_ids": [1], "sampling_params": {"extra_args": {field: value}}}
    assert field in (await refusal(tiny, route("/inference/v1/generate", token_route)))["message"]
    for native in ({field: value}, {"sampling_params": {"extra_args": {field: value}}}):
        assert field in (await refusal(tiny, {"prompt": "a", **native}))["message"]


@pytest.mark.parametrize(
    "model", ["/etc/passwd", "../../models/tiny-random", "file:///etc", "someone/adapter", "a\nb"]
)
async def test_a_model_is_a_served_name_and_never_a_path(tiny: EngineHost, model: str) -> None:
    assert (await refusal(tiny, {"prompt": "a", "model": model}))["code"] == 404
    assert (await refusal(tiny, route("/v1/completions", {"prompt": "a", "model": model})))["code"] == 404


@pytest.mark.parametrize(
    "field", ["lora_path", "lora_request", "lora_modules", "trust_remote_code", "tokenizer"]
)
async def test_what_is_set_at_the_start_cannot_be_set_by_a_job(tiny: EngineHost, field: str) -> None:
    assert (await refusal(tiny, {"prompt": "a", field: "/tmp/x"}))["param"] == field


@pytest.mark.parametrize("path", [*OPERATOR_ROUTES, "/docs", "/redoc", "/nothing"])
async def test_the_operators_routes_stay_shut(tiny: EngineHost, path: str) -> None:
    error = await refusal(tiny, route(path, {"lora_name": "x", "lora_path": "/etc"}))
    assert error["code"] in (403, 404)


ESCAPES = [
    "/v1/../collective_rpc",
    "/v1/%2e%2e/sleep",
    "/v1/models/../../sleep",
    "//sleep",
    "/v1\\..\\sleep",
    "http://169.254.169.254/",
    "/v1/models\r\nX-Injected: 1",
    "/v1/models#x",
    "/sleep;x",
    "/v1/models%00",
    "/SLEEP",
    "/sleep/",
    "/%73leep",
    "/v1/models%0d%0aX: 1",
]


@pytest.mark.parametrize("path", ESCAPES)
async def test_a_route_cannot_leave_its_place(tiny: EngineHost, path: str) -> None:
    assert (await refusal(tiny, route(path, {"a": 1})))["code"] in (400, 403, 404)


@pytest_asyncio.fixture(loop_scope="session")
async def host() -> AsyncIterator[tuple[str, list[Any]]]:
    """An address of this machine, and the connections that it has had."""
    seen: list[Any] = []
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)

    async def listen() -> None:
        while True:
            seen.append(await asyncio.get_running_loop().sock_accept(listener))

    task = asyncio.create_task(listen())
    yield f"http://127.0.0.1:{listener.getsockname()[1]}/a.png", seen
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    listener.close()


def with_media(url: str) -> dict[str, dict[str, Any]]:
    """Jobs that name `url` in every way that there is."""
    parts = {
        "image_url": {"type": "image_url", "image_url": {"url": url}},
        "video_url": {"type": "video_url", "video_url": {"url": url}},
        "audio_url": {"type": "audio_url", "audio_url": {"url": url}},
        "input_image": {"type": "input_image", "image_url": url},
        "input_audio": {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        "file": {"type": "file", "file": {"file_data": url}},
    }
    jobs: dict[str, dict[str, Any]] = {}
    for name, part in parts.items():
        message = {"role": "user", "content": [{"type": "text", "text": "what is this"}, part]}
        jobs[f"native {name}"] = {"messages": [message]}
        jobs[f"chat {name}"] = route("/v1/chat/completions", {"messages": [message], "max_tokens": 1})
        jobs[f"tokenize {name}"] = route("/tokenize", {"messages": [message]})
    responses = {"role": "user", "content": [{"type": "input_image", "image_url": url, "detail": "auto"}]}
    jobs["responses"] = route("/v1/responses", {"input": [responses], "max_output_tokens": 1})
    anthropic = {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": url}}]}
    jobs["messages"] = route("/v1/messages", {"messages": [anthropic], "max_tokens": 1})
    return jobs


@pytest.mark.parametrize("name", with_media(""))
async def test_a_model_without_eyes_and_ears_fetches_nothing(
    tiny: EngineHost, host: tuple[str, list[Any]], name: str
) -> None:
    chunks = await Worker(tiny).run(with_media(host[0])[name])
    check(chunks)
    assert host[1] == []
    chunks = await Worker(tiny).run(with_media("file:///etc/passwd")[name])
    assert error_of(chunks) is not None or "root:" not in str(chunks)


def files_written_since(moment: float) -> list[Path]:
    folders = (Path(tempfile.gettempdir()), Path("/dev/shm"), Path.cwd())
    found = []
    for folder in folders:
        for name, inner, files in os.walk(folder):
            inner[:] = [one for one in inner if one not in (".git", ".venv", "models", "proc")]
            found += [Path(name, file) for file in files]
    return [path for path in found if is_newer(path, moment)]


def is_newer(path: Path, moment: float) -> bool:
    """Whether it is a file, not older, and still there: other programs write and remove theirs meanwhile."""
    try:
        return path.is_file() and path.stat().st_mtime >= moment
    except OSError:
        return False


def holds(path: Path, text: str) -> bool:
    try:
        return text.encode() in path.read_bytes()
    except OSError:  # gone since
        return False


LOUD = {
    "native": {"prompt": SECRET, "max_tokens": 1},
    "chat": route(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 1}
    ),
    "too long": {"prompt": f"{SECRET} " * 2000},
    "too long chat": route(
        "/v1/chat/completions", {"messages": [{"role": "user", "content": f"{SECRET} " * 2000}]}
    ),
    "too long messages": route(
        "/v1/messages", {"messages": [{"role": "user", "content": f"{SECRET} " * 2000}], "max_tokens": 1}
    ),
    "bad role": route("/v1/chat/completions", {"messages": [{"role": SECRET, "content": SECRET}]}),
    "bad type": route("/v1/completions", {"prompt": {"a": SECRET}}),
    "bad part": {"messages": [{"role": "user", "content": [{"type": SECRET, SECRET: SECRET}]}]},
    "bad schema": {"prompt": SECRET, "guided_json": {"type": SECRET}},
    "bad regex": route("/v1/completions", {"prompt": SECRET, "structured_outputs": {"regex": f"[{SECRET}"}}),
    "bad model": {"prompt": SECRET, "model": SECRET},
    "bad field": {"prompt": SECRET, SECRET: SECRET},
    "bad value": route("/v1/chat/completions", {**CHAT, "temperature": SECRET}),
    "bad response": route("/v1/responses", {"input": [{"type": SECRET, "content": SECRET}]}),
    "bad tool": route("/v1/chat/completions", {**CHAT, "tools": [{"type": SECRET}]}),
}


@pytest.mark.parametrize("name", LOUD)
async def test_prompts_and_answers_are_neither_logged_nor_written(
    tiny: EngineHost, name: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    log.configure("text", "debug")
    begun = time.time()
    await Worker(tiny).run(LOUD[name])
    await asyncio.sleep(0.05)
    shown = capfd.readouterr()
    assert SECRET not in shown.out + shown.err
    holders = [path for path in files_written_since(begun) if holds(path, SECRET)]
    assert holders == []


@pytest.mark.parametrize(
    "job_id", ["a/../b", "a\nERROR forged", "\u2028x", "x" * 5000, "%0d%0aX: 1", "\ud800"]
)
async def test_a_jobs_id_stays_one_word(
    tiny: EngineHost, job_id: str, capfd: pytest.CaptureFixture[str]
) -> None:
    log.configure("text", "info")
    for job in ({"prompt": "a", "max_tokens": 1}, route("/v1/chat/completions", CHAT)):
        assert check(await Worker(tiny).run(job, job_id)) is None
    lines = capfd.readouterr().out.splitlines()
    assert len([line for line in lines if " job " in line]) == 2
    assert all(line.isascii() and len(line) < 500 for line in lines)
    assert not any(line.startswith("ERROR") for line in lines)
