"""Which calls a fault rule strikes, and which a rate limit refuses."""

from __future__ import annotations

import pytest

from worker_vllm.emulator.faults import Faults
from worker_vllm.emulator.rate_limits import LIMITS, RateLimits
from worker_vllm.emulator.wire import WireError


def test_a_rule_strikes_its_routes_only() -> None:
    faults = Faults()
    rule = faults.add("status", ["run", "runsync"], status=503)
    assert faults.pick("run", "/v2/local/run") is rule
    assert faults.pick("status", "/v2/local/status/x") is None
    assert rule.hits == 1


def test_a_rule_skips_then_strikes_so_many_times() -> None:
    faults = Faults()
    faults.add("reset_before", "job-done", skip=1, times=2)
    assert [faults.pick("job-done", "") is not None for _ in range(5)] == [False, True, True, False, False]


def test_a_rule_can_be_about_one_job() -> None:
    faults = Faults()
    faults.add("reset_after", "job-done", contains="job-7")
    assert faults.pick("job-done", "/v2/local/job-done/w/job-8") is None
    assert faults.pick("job-done", "/v2/local/job-done/w/job-7") is not None


def test_chance_is_the_same_for_the_same_seed() -> None:
    def strikes(seed: int) -> list[bool]:
        faults = Faults(seed)
        faults.add("delay", "run", probability=0.5, seconds=1)
        return [faults.pick("run", "") is not None for _ in range(50)]

    assert strikes(1) == strikes(1) != strikes(2)
    assert 10 < sum(strikes(1)) < 40


def test_calls_over_the_limit_are_refused_until_the_window_has_passed() -> None:
    now = 0.0
    limits = RateLimits(lambda: now, lambda: 0, 0)
    for _ in range(2):
        with limits.call("purge-queue"):
            pass
    with pytest.raises(WireError) as caught, limits.call("purge-queue"):
        pass
    assert caught.value.status == 429
    now = 10.0
    with limits.call("purge-queue"):
        pass


def test_calls_at_once_are_limited_and_freed_when_they_end() -> None:
    limits = RateLimits(lambda: 0.0, lambda: 0, 0)
    with limits.call("requests"), limits.call("requests"), pytest.raises(WireError), limits.call("requests"):
        pass
    with limits.call("requests"):
        pass


def test_running_workers_raise_a_limit() -> None:
    limits = RateLimits(lambda: 0.0, lambda: 3, 2)
    for _ in range(6):
        with limits.call("purge-queue"):
            pass
    with pytest.raises(WireError), limits.call("purge-queue"):
        pass


def test_an_operation_without_a_limit_is_never_refused() -> None:
    assert "health" not in LIMITS
    limits = RateLimits(lambda: 0.0, lambda: 0, 0)
    for _ in range(5000):
        with limits.call("health"):
            pass
