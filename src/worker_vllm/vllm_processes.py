"""How vLLM's CPU build starts its processes: forked here, where it would spawn them.

It spawns its engine process, and that spawns a worker, so a start imports torch and vLLM three times, one
after the other: half of the whole start. vLLM forks on GPUs. On a CPU it spawns because OpenMP reads the
number of its threads and their CPUs from the environment, once, when it is loaded; a forked child is told
both by calls instead.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from worker_vllm import vllm_compat

METHOD_VARIABLE = "VLLM_WORKER_MULTIPROC_METHOD"
_THREADS_VARIABLE = "OMP_NUM_THREADS"
# vLLM sets one of these for each worker: libgomp's name and OpenMP's own
_CPUS_VARIABLES = ("GOMP_CPU_AFFINITY", "OMP_PLACES")

_default_threads: int | None = None
"""Threads of a forked child that the environment says nothing of; None while children are not prepared."""
_hooked = False


def keep_single_threaded() -> int | None:
    """On a CPU, let this process compute with one thread until `forked`, and after it where that forks, so
    that OpenMP has no threads here that a fork would lose: a child waits for them forever. Call it before
    anything is computed, and before vLLM makes its configuration, which overwrites METHOD_VARIABLE.

    Returns:
        How many threads there were. None where processes are started as vLLM does it: on another platform,
        or because the user has named a method. Nothing is changed then.
    """
    if os.environ.get(METHOD_VARIABLE) or not vllm_compat.load("current_platform").is_cpu():
        return None
    threads = int(vllm_compat.load("get_num_threads")())
    vllm_compat.load("set_num_threads")(1)
    return threads


@contextmanager
def forked(config: Any, threads: int | None) -> Iterator[None]:
    """In the block the engine's processes are forked, where that is safe: with one worker, without media,
    whose processors compute in this process, and while no other thread runs that could hold a lock. Elsewhere
    this process gets its threads back.

    Args:
        config: vLLM's VllmConfig.
        threads: what `keep_single_threaded` returned.
    """
    global _default_threads, _hooked
    is_safe = (
        config.parallel_config.world_size == 1
        and not config.model_config.is_multimodal_model
        and threading.active_count() == 1
    )
    if threads is None or not is_safe:
        if threads is not None:
            vllm_compat.load("set_num_threads")(threads)
        yield
        return
    if not _hooked:
        os.register_at_fork(after_in_child=_prepare_child)
        _hooked = True
    os.environ[METHOD_VARIABLE] = "fork"
    _default_threads = threads
    try:
        yield
    finally:
        _default_threads = None
        del os.environ[METHOD_VARIABLE]  # the user has set none: see `keep_single_threaded`


def _prepare_child() -> None:
    """In a forked child: what OpenMP would have read when it was loaded. The engine process, itself a child,
    prepares its own."""
    if _default_threads is None:
        return
    vllm_compat.load("set_num_threads")(int(os.environ.get(_THREADS_VARIABLE) or _default_threads))
    if cpus := _cpus(os.environ):
        os.sched_setaffinity(0, cpus)


def _cpus(environ: Mapping[str, str]) -> set[int]:
    """CPU numbers that OpenMP's threads are bound to: "0 1 2" or "{0,1,2}"; a form that vLLM does not write
    binds nothing."""
    for name in _CPUS_VARIABLES:
        text = environ.get(name, "")
        if re.fullmatch(r"\{?\d+(?:[ ,]+\d+)*\}?", text):
            return {int(number) for number in re.findall(r"\d+", text)}
    return set()
