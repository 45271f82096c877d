"""Faults on the wire, by rule: delays, wrong answers, cut connections, lost pings, jobs delivered twice.

Rules go by the route's name (`job-done`, `job-stream`, `job-take`, `ping`, `run`, `openai` …). What they do
is decided by a seeded generator, so that a run can be repeated.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from aiohttp import web

from .wire import error_reply

FaultKind = Literal["delay", "status", "reset_before", "reset_after", "hold", "ignore", "repeat", "redeliver"]
"""delay: answer later. status: answer a code, nothing done. reset_before and reset_after: cut the
connection before or after the call was carried out. hold: keep the call open, then cut it. ignore: answer
200, nothing done (a lost ping). repeat: carry the call out twice. redeliver: a job-take whose jobs are
handed out once more, next time."""

REDELIVER = web.RequestKey("redeliver", bool)
"""Set on a job-take whose jobs are to be handed out a second time."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(kw_only=True)
class Fault:
    """One rule.

    Attributes:
        routes: names of the routes it applies to.
        probability: how likely a matching call is hit.
        times: how many calls are still to be hit; None is no bound.
        skip: matching calls that pass untouched first.
        contains: a part of the path that must be there (a job id, a worker id); "" is any.
        seconds: the length of delay and hold.
        status: the code of a status fault.
        hits: how often it has struck.
    """

    kind: FaultKind
    routes: frozenset[str]
    probability: float = 1.0
    times: int | None = None
    skip: int = 0
    contains: str = ""
    seconds: float = 0.0
    status: int = 500
    hits: int = 0


class Faults:
    """The rules in force; an empty set costs nothing."""

    def __init__(self, seed: int = 0) -> None:
        self.rules: list[Fault] = []
        self._random = random.Random(seed)

    def add(self, kind: FaultKind, routes: str | Iterable[str], **options: object) -> Fault:
        """Put a rule in force; see `Fault` for the options. Remove it with `rules.remove`."""
        names = frozenset([routes] if isinstance(routes, str) else routes)
        rule = Fault(kind=kind, routes=names, **options)  # type: ignore[arg-type]
        self.rules.append(rule)
        return rule

    def pick(self, route: str, path: str) -> Fault | None:
        """The first rule that strikes this call; it counts as a hit."""
        for rule in self.rules:
            if route not in rule.routes or rule.contains not in path or rule.times == 0:
                continue
            if rule.skip > 0:
                rule.skip -= 1
                continue
            if self._random.random() >= rule.probability:
                continue
            if rule.times is not None:
                rule.times -= 1
            rule.hits += 1
            return rule
        return None


async def apply_fault(fault: Fault, request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer a call as the rule says."""
    match fault.kind:
        case "delay":
            await asyncio.sleep(fault.seconds)
            return await handler(request)
        case "status":
            await request.read()
            return error_reply(fault.status, "a fault put in on purpose")
        case "ignore":
            await request.read()
            return web.Response(status=200)
        case "repeat":
            await handler(request)
            return await handler(request)
        case "redeliver":
            request[REDELIVER] = True
            return await handler(request)
        case "hold":
            await asyncio.sleep(fault.seconds)
            return reset(request)
        case "reset_before":
            return reset(request)
        case "reset_after":
            await handler(request)
            return reset(request)


def reset(request: web.Request) -> web.Response:
    """Cut the connection, so that the other side sees a reset and no answer."""
    transport = request.transport
    if transport is not None:
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        transport.abort()
    return web.Response(status=500)
