"""The environment that a worker is given: the platform's own, and what RunPod injects (runpod-sdk.md
section 9).
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from .policy import Policy

# What would lead the SDK elsewhere than to this platform.
_REPLACED = (
    "RUNPOD_WEBHOOK_GET_JOB",
    "RUNPOD_WEBHOOK_POST_OUTPUT",
    "RUNPOD_WEBHOOK_POST_STREAM",
    "RUNPOD_WEBHOOK_PING",
    "RUNPOD_PING_INTERVAL",
    "RUNPOD_POD_ID",
    "RUNPOD_POD_HOSTNAME",
    "RUNPOD_AI_API_KEY",
    "RUNPOD_ENDPOINT_ID",
    "RUNPOD_ENDPOINT_BASE_URL",
    "RUNPOD_REALTIME_PORT",
)

# The SDK's own checks want a GPU and the internet. PYTHONUNBUFFERED: the worker's lines are relayed as they
# come.
_DEFAULTS = {
    "RUNPOD_SKIP_AUTO_SYSTEM_CHECKS": "true",
    "RUNPOD_SKIP_GPU_CHECK": "true",
    "RUNPOD_LOG_LEVEL": "INFO",
    "RUNPOD_DC_ID": "LOCAL-1",
    "PYTHONUNBUFFERED": "1",
}


def worker_environment(
    base: Mapping[str, str],
    *,
    url: str,
    worker_id: str,
    worker_key: str,
    policy: Policy,
    hub_form: bool = False,
) -> dict[str, str]:
    """The variables for one worker.

    Args:
        base: the environment to pass on. RUNPOD_* variables that wire a worker are replaced, others are kept.
        url: the endpoint's address.
        hub_form: as the Hub's test runner wires it: no `?` in the take URL, no stream URL, no pings (5.3).
    """
    environment = {
        **_DEFAULTS,
        "RUNPOD_CPU_COUNT": str(os.cpu_count() or 1),
        "RUNPOD_MEM_GB": str(_memory_gb()),
    }
    environment.update({name: value for name, value in base.items() if name not in _REPLACED})
    environment.update(no_proxy(base))
    environment.update(
        RUNPOD_POD_ID=worker_id,
        RUNPOD_POD_HOSTNAME=worker_id,
        RUNPOD_AI_API_KEY=worker_key,
        RUNPOD_WEBHOOK_POST_OUTPUT=f"{url}/job-done/$RUNPOD_POD_ID/$ID?gpu=local",
    )
    if hub_form:
        environment.update(
            RUNPOD_ENDPOINT_BASE_URL=url,
            RUNPOD_WEBHOOK_GET_JOB=f"{url}/job-take/{worker_id}",
            RUNPOD_TEST="true",
        )
        return environment
    environment.update(
        RUNPOD_WEBHOOK_GET_JOB=f"{url}/job-take/$ID?gpu=local",
        RUNPOD_WEBHOOK_POST_STREAM=f"{url}/job-stream/$RUNPOD_POD_ID/$ID?gpu=local",
        RUNPOD_WEBHOOK_PING=f"{url}/ping/$RUNPOD_POD_ID?gpu=local",
        RUNPOD_PING_INTERVAL=str(policy.ping_interval_ms),
    )
    if policy.inject_endpoint_id:
        environment["RUNPOD_ENDPOINT_ID"] = policy.endpoint_id
    return environment


def _memory_gb() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 1024**3


def no_proxy(base: Mapping[str, str]) -> dict[str, str]:
    """What keeps clients from asking a proxy for this machine; nothing where no proxy is set."""
    if not any(base.get(name) for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")):
        return {}
    known = base.get("no_proxy") or base.get("NO_PROXY") or ""
    hosts = ",".join(filter(None, (known, "127.0.0.1", "localhost")))
    return {"no_proxy": hosts, "NO_PROXY": hosts}
