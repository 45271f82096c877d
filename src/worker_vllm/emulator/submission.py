"""The bodies of /run and /runsync, checked (runpod-platform.md 1.2)."""

from __future__ import annotations

from typing import Any

from .job_record import Submission
from .policy import Policy
from .wire import WireError

FORWARDED_KEYS = ("webhook", "s3Config")


def parse_submission(body: Any, policy: Policy) -> Submission:
    """The submission in a request's JSON body. Unknown top-level keys are ignored, as the live service does.

    Raises:
        WireError: 400, naming the key.
    """
    if not isinstance(body, dict) or body.get("input") is None:
        raise WireError(400, "the body must be a JSON object with a key `input` that is not null")
    webhook = body.get("webhook") or None
    if webhook is not None and not (isinstance(webhook, str) and webhook.startswith(("http://", "https://"))):
        raise WireError(400, "webhook must be an http or https address")
    given = body.get("policy")
    if given is not None and not isinstance(given, dict):
        raise WireError(400, "policy must be an object")
    limits = given or {}
    return Submission(
        job_input=body["input"],
        webhook=webhook,
        policy=given,
        execution_timeout_ms=_duration(
            limits, "executionTimeout", policy.execution_timeout_ms, policy.min_execution_timeout_ms, policy
        ),
        ttl_ms=_duration(limits, "ttl", policy.ttl_ms, policy.min_ttl_ms, policy),
        extras={key: body[key] for key in FORWARDED_KEYS if body.get(key) is not None},
    )


def default_submission(job_input: Any, policy: Policy) -> Submission:
    """A job without a caller's options, as the OpenAI gateway makes it."""
    return Submission(
        job_input=job_input, execution_timeout_ms=policy.execution_timeout_ms, ttl_ms=policy.ttl_ms
    )


def _duration(limits: dict[str, Any], key: str, default: int, minimum: int, policy: Policy) -> int:
    """`limits[key]` in milliseconds, within the documented range."""
    value = limits.get(key)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int):
        raise WireError(400, f"policy.{key} must be a whole number of milliseconds")
    bounded = min(max(value, minimum), policy.max_policy_ms)
    if bounded != value and policy.policy_out_of_range == "reject":
        raise WireError(400, f"policy.{key} must be between {minimum} and {policy.max_policy_ms} ms")
    return bounded
