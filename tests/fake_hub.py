"""A model hub on loopback, for the real hub library: its API, redirects to a file store, ETags, ranges, and
the ways in which a hub fails.

It answers as huggingface.co does, as far as the library looks: model_info and trees with sizes and hashes,
X-Repo-Commit, X-Linked-Etag and X-Linked-Size with a redirect for large files, X-Error-Code for refusals. A
gated repository shows its lists to everybody and its files to those who were let in.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web

from worker_vllm.models import hub as hub_module

LARGE = (".safetensors", ".bin", ".pt", ".gguf")
"""What is kept in the file store, as the real hub does for weights."""

CHUNK_BYTES = 4096


@dataclass
class Repository:
    """One repository: its commits, oldest first, each a file's name to its content."""

    commits: dict[str, dict[str, bytes]]
    branches: dict[str, str]
    gated: bool = False
    private: bool = False


@dataclass
class Fault:
    """What goes wrong with requests that match `pattern` ("METHOD path"), `times` times.

    status: the answer; cut_after: the connection is cut after so many bytes of the file; seconds: nothing is
    said for so long.
    """

    pattern: str
    times: int = 1
    status: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    seconds: float = 0.0


class FakeHub:
    """The hub's content and what was asked of it.

    Attributes:
        tokens: the accounts that exist, to the repositories that each may see beyond the public ones.
        requests: every request as "METHOD path", with the Range header behind it where there was one.
        url: where it is. store_url: where the large files are.
        bytes_per_second: how fast files are sent; None for as fast as they go.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.tokens: dict[str, set[str]] = {}
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.bytes_per_second: int | None = None
        self.url = ""
        self.store_url = ""

    def clear(self) -> None:
        """Forget everything but where it is."""
        url, store_url = self.url, self.store_url
        self.__dict__.update(FakeHub().__dict__)
        self.url, self.store_url = url, store_url

    def add(self, name: str, files: Mapping[str, bytes | str | dict[str, Any]], **how: Any) -> str:
        """Add a commit to a repository's main branch; returns the commit."""
        content = {
            path: (json.dumps(data) if isinstance(data, dict) else data) for path, data in files.items()
        }
        blobs = {path: data.encode() if isinstance(data, str) else data for path, data in content.items()}
        commit = hashlib.sha1(repr((name, sorted(blobs.items()))).encode()).hexdigest()
        repository = self.repositories.setdefault(name, Repository({}, {}, **how))
        repository.commits[commit] = blobs
        repository.branches["main"] = commit
        return commit

    def fail(self, pattern: str, **how: Any) -> None:
        """Let requests fail; see `Fault`."""
        self.faults.append(Fault(pattern, **how))

    def asked(self, pattern: str) -> list[str]:
        """The requests that match."""
        return [request for request in self.requests if re.search(pattern, request)]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        span = request.headers.get("Range", "")
        self.requests.append(f"{request.method} {request.path_qs} {span}".strip())
        fault = self._fault(f"{request.method} {request.path_qs}")
        if fault is not None and fault.seconds:
            await asyncio.sleep(fault.seconds)
        if fault is not None and fault.status:
            return web.json_response({"error": "by script"}, status=fault.status, headers=fault.headers)
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if token and token not in self.tokens:
            message = "Invalid credentials in Authorization header"
            return web.json_response({"error": message}, status=401, headers={"X-Error-Message": message})
        path = request.path.lstrip("/")
        if path == "api/models":
            return self._search(request)
        if path.startswith("store/"):
            return await self._send(request, self._by_sha(path.removeprefix("store/")), fault)
        if found := re.fullmatch(r"api/models/(.+?)(?:/(revision|tree)/([^/]+))?", path):
            return self._describe(found[1], found[2] or "revision", found[3] or "main", token)
        if found := re.fullmatch(r"(.+?)/resolve/([^/]+)/(.+)", path):
            return await self._file(request, found[1], found[2], found[3], token, fault)
        return refused(404, "RepoNotFound")

    def _fault(self, request: str) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and re.search(fault.pattern, request):
                fault.times -= 1
                return fault
        return None

    def _search(self, request: web.Request) -> web.Response:
        wanted, author = request.query.get("search", "").lower(), request.query.get("author", "")
        names = [
            name
            for name, repository in self.repositories.items()
            if not repository.private and wanted in name.lower() and name.startswith(author)
        ]
        return web.json_response([{"id": name, "_id": name} for name in names])

    def _seen(self, name: str, token: str) -> Repository | None:
        repository = self.repositories.get(name)
        if repository is None or (repository.private and name not in self.tokens.get(token, ())):
            return None
        return repository

    def _describe(self, name: str, kind: str, revision: str, token: str) -> web.Response:
        repository = self._seen(name, token)
        if repository is None:
            # without a token the real hub does not even say whether there is such a repository
            return refused(404 if token else 401, "RepoNotFound")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return refused(404, "RevisionNotFound")
        files = repository.commits[commit]
        if kind == "tree":
            return web.json_response([entry(path, data, "oid", "path") for path, data in files.items()])
        siblings = [entry(path, data, "sha256", "rfilename") for path, data in files.items()]
        return web.json_response({"id": name, "_id": name, "sha": commit, "siblings": siblings})

    async def _file(
        self, request: web.Request, name: str, revision: str, path: str, token: str, fault: Fault | None
    ) -> web.StreamResponse:
        repository = self._seen(name, token)
        if repository is None:
            return refused(404 if token else 401, "RepoNotFound")
        if repository.gated and name not in self.tokens.get(token, ()):
            return refused(403 if token else 401, "GatedRepo")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return refused(404, "RevisionNotFound")
        data = repository.commits[commit].get(path)
        if data is None:
            return refused(404, "EntryNotFound", {"X-Repo-Commit": commit})
        headers = {"X-Repo-Commit": commit, "ETag": f'"{git_hash(data)}"'}
        if not path.endswith(LARGE):
            return await self._send(request, data, fault, headers)
        sha = hashlib.sha256(data).hexdigest()
        headers |= {"X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(data))}
        return web.Response(status=302, headers={**headers, "Location": f"{self.store_url}/store/{sha}"})

    def _by_sha(self, sha: str) -> bytes:
        blobs = (
            data
            for repository in self.repositories.values()
            for files in repository.commits.values()
            for data in files.values()
        )
        return next(data for data in blobs if hashlib.sha256(data).hexdigest() == sha)

    async def _send(
        self, request: web.Request, data: bytes, fault: Fault | None, headers: Mapping[str, str] | None = None
    ) -> web.StreamResponse:
        span = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        start = int(span[1]) if span else 0
        response = web.StreamResponse(status=206 if span else 200, headers=dict(headers or {}))
        response.content_length = len(data) - start
        if span:
            response.headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        for position in range(start, len(data), CHUNK_BYTES):
            if fault is not None and fault.cut_after is not None and position - start >= fault.cut_after:
                assert request.transport is not None
                request.transport.close()
                return response
            chunk = data[position : position + CHUNK_BYTES]
            await response.write(chunk)
            if self.bytes_per_second:
                await asyncio.sleep(len(chunk) / self.bytes_per_second)
        return response


def entry(path: str, data: bytes, hash_key: str, path_key: str) -> dict[str, Any]:
    """One file of a list. The two lists of the real hub name the same things differently."""
    found: dict[str, Any] = {path_key: path, "size": len(data), "type": "file"}
    found["oid" if hash_key == "oid" else "blobId"] = git_hash(data)
    if path.endswith(LARGE):
        sha = hashlib.sha256(data).hexdigest()
        found["lfs"] = {"size": len(data), hash_key: sha, "pointerSize": 130}
    return found


def git_hash(data: bytes) -> str:
    """What git calls a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def refused(status: int, code: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """A refusal in the hub's form."""
    return web.json_response(
        {"error": code}, status=status, headers={**(headers or {}), "X-Error-Code": code}
    )


def hurry(patch: pytest.MonkeyPatch) -> None:
    """Let the hub library ask the hub in HF_ENDPOINT, as this one speaks, and nobody wait for it."""
    patch.setattr(hub_module, "FIRST_WAIT_SECONDS", 0.01)
    patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    patch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    """Serve `hub` on a free port of loopback, in a thread of its own."""
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=1024)
        app.router.add_route("*", "/{path:.*}", hub.handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        port = runner.addresses[0][1]
        # the file store is another host, as the library tells a redirect by that
        await web.TCPSite(runner, "127.0.0.2", port).start()
        hub.url, hub.store_url = f"http://127.0.0.1:{port}", f"http://127.0.0.2:{port}"
        return runner

    runner = loop.run_until_complete(start())
    thread = threading.Thread(target=loop.run_forever, name="fake-hub", daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
