"""What a worker could leave on the machine: processes, shared memory, files, listening ports.

Other programs use this machine, too: what counts is what a run's own processes, known by a mark in their
environment, have had open.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from worker_vllm.emulator.processes import command_line

SHARED_MEMORY = Path("/dev/shm")


def descendants(pid: int) -> list[int]:
    """Process ids of everything below a process, parents first."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            words = children.read_text().split()
        except OSError:
            continue
        for child in map(int, words):
            found += [child, *descendants(child)]
    return found


def process_of(pid: int, name: str) -> int:
    """The process id of the one process below a worker that goes by that name."""
    (found,) = [child for child in descendants(pid) if name in command_line(child)]
    return found


def is_running(pid: int) -> bool:
    """Whether a process lives; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def marked(mark: str) -> list[int]:
    """Living processes that have `mark` in their environment, but for this one."""
    needle = mark.encode()
    return [pid for pid in _processes() if pid != os.getpid() and needle in _bytes(f"/proc/{pid}/environ")]


def listening_ports(pids: Iterable[int]) -> set[int]:
    """TCP ports that these processes listen on."""
    inodes = set()
    for pid in pids:
        for descriptor in _listdir(f"/proc/{pid}/fd"):
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            if match := re.fullmatch(r"socket:\[(\d+)\]", target):
                inodes.add(match[1])
    return {port for port, inode in _listeners() if inode in inodes}


def shared_memory(pids: Iterable[int]) -> set[str]:
    """Names in /dev/shm that these processes have mapped."""
    maps = "".join(_bytes(f"/proc/{pid}/maps").decode(errors="replace") for pid in pids)
    return set(re.findall(rf"{SHARED_MEMORY}/(\S+)", maps))


def existing_shared_memory() -> set[str]:
    """All names in /dev/shm."""
    return {entry.name for entry in SHARED_MEMORY.iterdir()}


def files_below(folder: Path) -> list[str]:
    """Everything in a folder, sockets too; nothing where it is gone."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def open_descriptors(pid: int) -> int:
    """How many descriptors a process has open."""
    return len(_listdir(f"/proc/{pid}/fd"))


def resident_bytes(pid: int) -> int:
    """A process's memory that is its own: resident, shared pages left out."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(fields[1]) - int(fields[2])) * os.sysconf("SC_PAGE_SIZE")


def _processes() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _listdir(folder: str) -> list[Path]:
    try:
        return list(Path(folder).iterdir())
    except OSError:
        return []


def _bytes(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return b""


def _listeners() -> Iterator[tuple[int, str]]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in _bytes(table).decode().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                yield int(fields[1].rpartition(":")[2], 16), fields[9]
