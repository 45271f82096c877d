"""The Hub's test runner: sends each input of .runpod/tests.json to /runsync, one after another (5.3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from .job_record import JobState

DEFAULT_TIMEOUT_MS = 30_000
LONGEST_OUTPUT = 10_000
"""Longer outputs are not shown."""

POLL_MS = 5_000


class HubFileError(Exception):
    """tests.json is missing or not in its form."""


@dataclass(frozen=True)
class HubTest:
    """One test: an input, and how long its job may take."""

    name: str
    job_input: Any
    timeout_ms: int


@dataclass(frozen=True)
class HubTests:
    """A tests.json: its tests, and the variables it sets for the worker."""

    tests: tuple[HubTest, ...]
    environment: Mapping[str, str]


@dataclass(frozen=True)
class HubResult:
    """How one test went.

    Attributes:
        detail: the status, or what went wrong.
        output: the job's output as JSON text, cut where it is long.
    """

    name: str
    passed: bool
    detail: str
    output: str


def read_hub_tests(path: Path) -> HubTests:
    """Read a tests.json.

    Raises:
        HubFileError: with what is wrong in one line.
    """
    try:
        content = json.loads(path.read_text())
        tests = tuple(
            HubTest(str(entry["name"]), entry["input"], int(entry.get("timeout", DEFAULT_TIMEOUT_MS)))
            for entry in content["tests"]
        )
        variables = content.get("config", {}).get("env", [])
        return HubTests(tests, {entry["key"]: str(entry["value"]) for entry in variables})
    except OSError as error:
        raise HubFileError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise HubFileError(
            f"{path} is not a tests.json ({type(error).__name__}: {error}): tests[] need name and input"
        ) from error


async def run_hub_test(url: str, test: HubTest, api_key: str | None) -> HubResult:
    """Run one test against the endpoint at `url`. It passes when the answer is 200 and the job COMPLETED."""
    headers = {"Authorization": f"Bearer {api_key or 'local'}"}
    try:
        async with asyncio.timeout(test.timeout_ms / 1000), aiohttp.ClientSession(headers=headers) as session:
            job = await _post(session, f"{url}/runsync?wait={test.timeout_ms}", {"input": test.job_input})
            while job["status"] in (JobState.IN_QUEUE, JobState.IN_PROGRESS):
                job = await _post(session, f"{url}/status-sync/{job['id']}?wait={POLL_MS}", None)
    except TimeoutError:
        return HubResult(test.name, False, f"no result within {test.timeout_ms} ms", "")
    except aiohttp.ClientResponseError as error:
        return HubResult(test.name, False, f"HTTP {error.status}", "")
    except aiohttp.ClientError as error:
        return HubResult(test.name, False, f"{type(error).__name__}: {error}", "")
    output = json.dumps(job.get("output", job.get("error")), ensure_ascii=False)
    if len(output) > LONGEST_OUTPUT:
        output = f"({len(output)} characters)"
    return HubResult(test.name, job["status"] == JobState.COMPLETED, job["status"], output)


async def _post(session: aiohttp.ClientSession, url: str, body: Any) -> dict[str, Any]:
    async with session.post(url, json=body, raise_for_status=True) as response:
        return dict(await response.json())
