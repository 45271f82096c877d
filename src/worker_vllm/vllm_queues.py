"""How vLLM's engine process and its workers wait for each other, where vLLM's own way stops or starves them.

They speak through shared memory, and wake each other through ZeroMQ with a notification that may be dropped
(`SpinCondition`). A reader that has seen nothing for a second sleeps until the next one, and after a pause of
the whole container both sides have: a dropped notification then stops the engine. vLLM 0.26 waits without
end, 0.28 and later for five seconds (vLLM pull request 45224).

A reader that has not waited for a second calls sched_yield again and again. Where CPUs are few, as on a
machine without a GPU, Linux 6.18 then lets all other processes wait: no stream moved for up to eight seconds.
"""

from __future__ import annotations

import inspect
from functools import wraps
from typing import Any

from worker_vllm import vllm_compat

RECHECK_MS = 100
"""How long a reader sleeps at most before it looks into the shared memory again: cheap, for a look takes
microseconds."""

_PROCESS_NAMES = ("EngineCore", "VllmWorker")


def wait_well() -> None:
    """Bound the sleep of readers in this process and in those that it forks, and on a CPU let them sleep for
    the shortest time instead of yielding. Repeatable. A vLLM that waits in another way is left alone."""
    _bound_sleep(vllm_compat.load("SpinCondition"))
    if vllm_compat.load("current_platform").is_cpu():
        # vLLM's own switch, for versions of Python without sched_yield
        vllm_compat.load("sched_yield").__globals__["USE_SCHED_YIELD"] = False


def wait_well_in(process_name: str) -> None:
    """In a spawned process: do the same if it is one of vLLM's, which import the queues anyway."""
    if process_name.startswith(_PROCESS_NAMES):
        wait_well()


def _bound_sleep(spin_condition: Any) -> None:
    wait = getattr(spin_condition, "wait", None)
    if wait is None or hasattr(wait, "__wrapped__") or "timeout_ms" not in inspect.signature(wait).parameters:
        return

    @wraps(wait)
    def wait_briefly(self: Any, timeout_ms: int | None = None) -> Any:
        return wait(self, timeout_ms=RECHECK_MS if timeout_ms is None else min(timeout_ms, RECHECK_MS))

    spin_condition.wait = wait_briefly
