"""One run of `worker-vllm local` in this process: the demonstration's place in it, and its port."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import signal
import socket
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.contract.emulator_bench import eventually
from tests.contract.emulator_process import environment, hub_file, living, worker_command
from worker_vllm.cli import demo, local_session
from worker_vllm.emulator.hub_test import read_hub_tests
from worker_vllm.emulator.policy import Policy


def plan_of(**changes: Any) -> local_session.Plan:
    values: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "any_port_will_do": False,
        "policy": Policy(),
        "api_key": None,
        "command": tuple(worker_command("tiny_worker.py").split()),
        "environment": environment(),
        "workers": 1,
        "demo": True,
        "once": False,
        "hub_tests": None,
        "log_path": None,
    }
    return local_session.Plan(**{**values, **changes})


class DemoScript:
    """Stands for the demonstration requests, whose clients take seconds to import."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "demo.py"
        self.mark = folder / "mark"

    def write(self, *lines: str) -> None:
        """A script that waits for its go, then runs these lines."""
        begin = ["import os, pathlib, sys, time", "go = sys.stdin.readline().strip()"]
        self.path.write_text("\n".join([*begin, f"mark = pathlib.Path({str(self.mark)!r})", *lines, ""]))

    def marked(self) -> str:
        return self.mark.read_text() if self.mark.exists() else ""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DemoScript:
    found = DemoScript(tmp_path)
    monkeypatch.setattr(demo, "__file__", str(found.path))
    return found


@pytest.mark.parametrize(("ending", "code"), [("sys.exit(0)", 0), ("sys.exit(1)", 1), ("os.abort()", 1)])
async def test_once_ends_after_the_demonstration_with_its_outcome(
    ending: str, code: int, script: DemoScript, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script.write("print('said', go, sys.argv[1], flush=True)", ending)
    assert await local_session.serve(plan_of(once=True, log_path=tmp_path / "log")) == code
    ready, said = capfd.readouterr().out.splitlines()
    assert said == f"said go {ready.removeprefix('ready ')}"


async def test_a_demonstration_names_the_file_with_the_worker_s_whole_output(
    script: DemoScript, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write()
    assert await local_session.serve(plan_of(once=True)) == 0
    before, _, name = capfd.readouterr().out.splitlines()[0].rpartition(" ")
    assert before == "the worker's whole output:"
    take_away(name)


async def test_a_demonstration_is_followed_by_how_to_call_and_by_service(
    script: DemoScript, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script.write()
    run = asyncio.create_task(local_session.serve(plan_of(log_path=tmp_path / "log")))
    text = ""

    async def serving() -> bool:
        nonlocal text
        text += capfd.readouterr().out
        return "serving until Ctrl-C" in text

    await eventually(serving)
    assert "Call it with curl:" in text
    assert not run.done()
    signal.raise_signal(signal.SIGTERM)
    assert await run == 0


async def test_a_demonstration_under_way_is_ended_by_a_signal(script: DemoScript, tmp_path: Path) -> None:
    script.write("mark.write_text(str(os.getpid()))", "time.sleep(600)")
    run = asyncio.create_task(local_session.serve(plan_of(log_path=tmp_path / "log")))

    async def under_way() -> bool:
        return script.marked() != ""

    await eventually(under_way)
    signal.raise_signal(signal.SIGINT)
    assert await run == 0
    assert living({int(script.marked())}) == set()


async def test_a_default_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        plan = plan_of(port=port, any_port_will_do=True)
        async with AsyncExitStack() as exits:
            platform = await local_session.open_platform(plan, exits)
            assert platform.port not in (0, port)
        with pytest.raises(OSError, match="in use"):
            async with AsyncExitStack() as exits:
                await local_session.open_platform(dataclasses.replace(plan, any_port_will_do=False), exits)


async def test_a_chosen_port_that_is_taken_is_one_line_and_2(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert await local_session.serve(plan_of(port=port)) == 2
    assert re.fullmatch(rf"worker-vllm local: .*127\.0\.0\.1:{port}.*\n", capfd.readouterr().err)


def hub_plan(folder: Path, *tests: dict[str, Any]) -> local_session.Plan:
    policy = dataclasses.replace(Policy(), restart_limit=0, worker_grace_s=0.2)
    return plan_of(demo=False, hub_tests=read_hub_tests(hub_file(folder, *tests)), policy=policy)


async def test_a_failed_hub_test_is_exit_code_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    plan = hub_plan(tmp_path, {"input": {"x": 1}}, {"input": {"hang": True}, "timeout": 300})
    assert await local_session.serve(plan) == 1
    *_, passed, failed, total = capfd.readouterr().out.splitlines()
    assert passed.startswith("PASS t0: COMPLETED")
    assert failed.startswith("FAIL t1: no result within 300 ms")
    assert total == "1 of 2 hub tests passed"


async def test_a_worker_that_ends_during_a_hub_test_fails_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert await local_session.serve(hub_plan(tmp_path, {"input": {"exit": 9}})) == 9
    said = capfd.readouterr()
    assert said.out.splitlines()[-1] == "FAIL: command closed"
    assert said.err.splitlines()[-1] == "worker summary: told to crash"


def take_away(name: str) -> None:
    """Remove a file that must be there."""
    Path(name).unlink()
