"""A platform in this process and the two who talk to it: a client, and a worker played by hand over HTTP."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from worker_vllm.emulator.policy import Policy
from worker_vllm.emulator.server import Platform

QUICK = {"take_hold_s": 0.3, "stop_hold_s": 0.3, "min_wait_ms": 10}
"""Short holds, so that a test does not wait for what it does not test."""


async def eventually(check: Callable[[], Awaitable[bool]], timeout_s: float = 30.0) -> None:
    """Wait until `check` says yes; fails after `timeout_s`."""
    async with asyncio.timeout(timeout_s):
        while not await check():  # noqa: ASYNC110 - what is waited for happens in other processes
            await asyncio.sleep(0.02)


@dataclasses.dataclass(frozen=True)
class Reply:
    """A whole answer."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls one platform. Every method answers a `Reply`."""

    def __init__(self, platform: Platform, session: aiohttp.ClientSession) -> None:
        self.platform = platform
        self.session = session

    async def call(
        self, method: str, path: str, body: Any = None, *, headers: Any = None, data: Any = None
    ) -> Reply:
        async with self.session.request(
            method, f"{self.platform.url}/{path}", json=body, data=data, headers=headers
        ) as response:
            return Reply(response.status, response.headers, await response.read())

    async def get(self, path: str) -> Reply:
        return await self.call("GET", path)

    async def post(self, path: str, body: Any = None, **options: Any) -> Reply:
        return await self.call("POST", path, body, **options)

    async def run(self, job_input: Any = None, **keys: Any) -> str:
        return (await self.post("run", {"input": {"n": 1} if job_input is None else job_input, **keys})).json[
            "id"
        ]

    async def status(self, job_id: str) -> dict[str, Any]:
        return (await self.get(f"status/{job_id}")).json

    async def until(self, job_id: str, status: str) -> dict[str, Any]:
        """Wait until the job has this status; the job object."""

        async def reached() -> bool:
            return (await self.status(job_id))["status"] == status

        await eventually(reached)
        return await self.status(job_id)


class Worker:
    """The worker's side of the wire, as the SDK speaks it (runpod-sdk.md section 9)."""

    def __init__(self, client: Client, name: str = "pod-1") -> None:
        self.client = client
        self.name = name

    async def take(self, batch: int | None = None) -> Any:
        """One job, a list of jobs for a batch, or None for 204."""
        if batch is None:
            reply = await self.client.get(f"job-take/{self.name}?gpu=x&job_in_progress=0")
        else:
            reply = await self.client.get(
                f"job-take-batch/{self.name}?gpu=x&batch_size={batch}&job_in_progress=1"
            )
        if reply.status == 204:
            return None
        assert reply.status == 200, reply
        assert reply.headers["Content-Type"] == "application/json"
        return reply.json

    async def stops(self) -> list[str]:
        reply = await self.client.get(f"job-stop/{self.name}?gpu=x")
        return [] if reply.status == 204 else reply.json["jobsToStop"]

    async def stream(self, job_id: str, output: Any) -> Reply:
        return await self._post(f"job-stream/{self.name}/{job_id}?gpu=x&isStream=false", {"output": output})

    async def done(self, job_id: str, *, is_stream: bool = True, **message: Any) -> Reply:
        flag = "true" if is_stream else "false"
        return await self._post(f"job-done/{self.name}/{job_id}?gpu=x&isStream={flag}", message)

    async def ping(self, *job_ids: str) -> Reply:
        jobs = f"&job_id={','.join(job_ids)}" if job_ids else ""
        return await self.client.get(f"ping/{self.name}?gpu=x{jobs}&runpod_version=1.12.0")

    async def _post(self, path: str, message: Any) -> Reply:
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Authorization": "K"}
        data = message if isinstance(message, bytes) else json.dumps(message, ensure_ascii=False).encode()
        return await self.client.post(path, data=data, headers=headers)


@asynccontextmanager
async def serving(
    *, api_key: str | None = None, strict: bool = False, **choices: Any
) -> AsyncIterator[Client]:
    """A platform with quick choices, and a client of it."""
    policy = dataclasses.replace(Policy().strict() if strict else Policy(), **{**QUICK, **choices})
    async with Platform(policy, api_key=api_key) as platform, aiohttp.ClientSession() as session:
        yield Client(platform, session)
