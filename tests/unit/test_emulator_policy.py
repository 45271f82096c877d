"""The platform's choices: documented one by one, replaceable by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker_vllm.emulator.policy import Policy, PolicyError


def test_every_choice_has_a_reason() -> None:
    rows = Policy.describe()
    assert len(rows) > 40
    assert all(row.why for row in rows)


def test_the_docs_list_the_choices_as_they_are() -> None:
    """Renew the block with the output of `worker-vllm local --choices`."""
    text = (Path(__file__).parents[2] / "docs" / "local-platform.md").read_text()
    assert text.rpartition("```text\n")[2].removesuffix("```\n").splitlines() == [
        str(row) for row in Policy.describe()
    ]


def test_settings_replace_choices_by_name_in_their_own_type() -> None:
    policy = Policy().with_settings(
        [
            "take_hold_s=0.5",
            "run_limit_bytes=7",
            "rate_limits=true",
            "late_result=accept",
            "webhook_delays_s=5,15",
            "lost_error=gone, {retries}=n",
        ]
    )
    assert policy.take_hold_s == 0.5
    assert policy.run_limit_bytes == 7
    assert policy.rate_limits is True
    assert policy.late_result == "accept"
    assert policy.webhook_delays_s == (5.0, 15.0)
    assert policy.lost_error == "gone, {retries}=n"
    assert policy.ttl_ms == Policy().ttl_ms


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("take_hold_s", "NAME=VALUE"),
        ("no_such=1", "take_hold_s"),
        ("take_hold_s=soon", "expected float"),
        ("rate_limits=yes", "expected true or false"),
        ("late_result=maybe", "expected drop or accept"),
    ],
)
def test_a_bad_setting_says_what_was_expected(setting: str, message: str) -> None:
    with pytest.raises(PolicyError, match=message):
        Policy().with_settings([setting])


def test_strict_ends_every_leniency() -> None:
    strict = Policy().strict()
    assert strict.require_key
    assert strict.check_worker_key
    assert strict.rate_limits
    assert strict.oversize_chunk == "reject"
