"""CPU and memory of a target's processes, by what they are there for.

A worker's tree holds the front end (the SDK, the tokenizer, the HTTP or ASGI layer), the engine's own
processes, and above both, where there is one, the platform. Only the front end is the worker's doing, so it
is counted apart.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import psutil

SAMPLE_SECONDS = 0.5
"""Between two looks at the memory."""

Role = Literal["platform", "frontend", "engine"]

_ENGINE_TITLES = ("EngineCore", "VLLM::Worker", "VLLM::DPCoordinator")
"""What vLLM writes into the command line of its engine's processes."""


@dataclass(frozen=True, kw_only=True)
class Usage:
    """What one run cost the target's machine.

    Attributes:
        seconds: length of the run.
        frontend_cpu_seconds, engine_cpu_seconds, platform_cpu_seconds: user and system time together.
        frontend_peak_bytes: largest resident memory of the front end's processes during the run.
        tree_peak_bytes: the same of front end and engine; pages that two processes share count twice.
        frontend_start_bytes, frontend_end_bytes: resident memory before and after, to see growth.
    """

    seconds: float
    frontend_cpu_seconds: float
    engine_cpu_seconds: float
    platform_cpu_seconds: float
    frontend_peak_bytes: int
    tree_peak_bytes: int
    frontend_start_bytes: int
    frontend_end_bytes: int

    @property
    def platform_busy(self) -> float:
        """The share of the run that the platform's process computed; near 1, the platform was the limit."""
        return self.platform_cpu_seconds / self.seconds if self.seconds else 0.0

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


class Meter:
    """Measures one run of a process tree: enter it before, leave it after, then ask for `usage`.

    Args:
        pid: the tree's root.
        has_platform: whether the root is the local platform, and the worker below it.
    """

    def __init__(self, pid: int, *, has_platform: bool) -> None:
        import psutil

        self._roles = roles(psutil.Process(pid), has_platform=has_platform)
        self._stop = threading.Event()
        self._peaks: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> Meter:
        self._before = self._cpu()
        self._start = self._memory()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._after = self._cpu()
        self._end = self._memory()
        self._note(self._end)

    def usage(self, seconds: float) -> Usage:
        """The figures of a run that took so many seconds."""
        spent = {role: self._after[role] - self._before[role] for role in ("frontend", "engine", "platform")}
        return Usage(
            seconds=seconds,
            frontend_cpu_seconds=spent["frontend"],
            engine_cpu_seconds=spent["engine"],
            platform_cpu_seconds=spent["platform"],
            frontend_peak_bytes=self._peaks["frontend"],
            tree_peak_bytes=self._peaks["tree"],
            frontend_start_bytes=self._start["frontend"],
            frontend_end_bytes=self._end["frontend"],
        )

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_SECONDS):
            self._note(self._memory())

    def _note(self, memory: Counter[str]) -> None:
        memory["tree"] = memory["frontend"] + memory["engine"]
        for role, size in memory.items():
            self._peaks[role] = max(self._peaks[role], size)

    def _cpu(self) -> dict[str, float]:
        import psutil

        seconds = {"frontend": 0.0, "engine": 0.0, "platform": 0.0}
        for process, (role, _) in self._roles.items():
            try:
                times = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            seconds[role] += times.user + times.system
        return seconds

    def _memory(self) -> Counter[str]:
        import psutil

        sizes: Counter[str] = Counter()
        for process, (role, forked) in self._roles.items():
            if forked:
                continue
            try:
                sizes[role] += process.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        return sizes


def roles(root: psutil.Process, *, has_platform: bool) -> dict[psutil.Process, tuple[Role, bool]]:
    """Each process of the tree with its role, and whether it is a mere fork of its parent (the SDK's ping
    process): such a one has the parent's memory, not memory of its own."""
    found: dict[psutil.Process, tuple[Role, bool]] = {}
    _visit(root, "platform" if has_platform else _role_of(root), found)
    return found


def _visit(process: psutil.Process, role: Role, found: dict[psutil.Process, tuple[Role, bool]]) -> None:
    import psutil

    try:
        command, children = process.cmdline(), process.children()
        found.setdefault(process, (role, False))
        for child in children:
            child_role: Role = "engine" if role == "engine" else _role_of(child)
            found[child] = (child_role, child_role == "frontend" and child.cmdline() == command)
            _visit(child, child_role, found)
    except psutil.NoSuchProcess:
        return


def _role_of(process: psutil.Process) -> Role:
    title = " ".join(process.cmdline())
    return "engine" if any(name in title for name in _ENGINE_TITLES) else "frontend"
