"""What the account takes for right, where a stream alone does not tell."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.chaos.cases import Reading
from tests.chaos.ledger import Ledger, last_run
from tests.chaos.plan import STOP
from tests.chaos.tap import Attempt, History

WHOLE = "one two three"


@pytest.mark.parametrize(
    "streamed, faults, delivered_twice, read",
    [
        ("one t", [], False, "one t"),
        ("one tone two three", [STOP], True, WHOLE),
        ("one one two", [STOP], True, "one two"),
        ("one tone two three", [], True, "one tone two three"),
        ("one tone two three", [STOP], False, "one tone two three"),
        ("one three", [STOP], True, "one three"),
    ],
)
def test_a_second_run_in_one_attempt_counts_where_the_job_was_dropped_and_came_again(
    streamed: str, faults: list[str], delivered_twice: bool, read: str
) -> None:
    history = History(faults=faults, delivered_twice=delivered_twice)
    assert last_run(Reading(streamed), WHOLE, history).text == read


def test_a_job_that_never_reached_the_worker_is_not_the_workers_to_end() -> None:
    histories = {
        "ended": History(attempts=[Attempt(1, 0.0, ended_at=12.0)]),
        "lost on its way": History(attempts=[Attempt(1, 0.0, ended_at=36.0, handed=False)]),
    }
    plan: Any = None
    scene: Any = SimpleNamespace(tap=SimpleNamespace(histories=histories))
    seconds, which = Ledger(plan, scene, {}).last_end(histories, since=10.0)
    assert seconds == 2.0
    assert "job ended" in which
