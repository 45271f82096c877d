"""Who is measured when, and how the load is dealt to the clients."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from worker_vllm.bench import session
from worker_vllm.bench.clients import Clients, Seen, deal, offers
from worker_vllm.bench.load import Offer
from worker_vllm.bench.stats import RequestTimes
from worker_vllm.bench.targets import Target, TargetError
from worker_vllm.bench.workload import Workload

_STREAMED, _PLAIN = Workload(concurrency=2, requests=2), Workload(concurrency=2, requests=2, streamed=False)
_NO_CLIENTS = cast(Clients, None)


class ScriptedTarget(Target):
    """Answers each request in a tenth of a second, and writes down what is done to it."""

    def __init__(
        self, name: str, diary: list[str], *, fails: bool = False, environ: Mapping[str, str] | None = None
    ):
        super().__init__(name, environ or {}, Path())
        self._diary = diary
        self._fails = fails

    def start(self) -> None:
        self._diary.append(f"{self.name} starts")

    def run(self, clients: Clients, workload: Workload, round_number: int) -> Seen:
        if round_number >= 0:
            self._diary.append(f"{self.name} {'streamed' if workload.streamed else 'plain'} {round_number}")
        error = "refused" if self._fails else None
        return Seen(
            tuple(
                RequestTimes(
                    index=index, sent=0.0, first=0.05, last=0.1, gaps=(), chunks=1, tokens=2, error=error
                )
                for index in range(workload.requests)
            ),
            busy=0.0,
        )

    def accepts(self, workload: Workload) -> bool:
        return workload.route != "native"

    def stop(self) -> None:
        self._diary.append(f"{self.name} stops")


def _measure(order: Any, diary: list[str], *, workloads: tuple[Workload, ...] = (_STREAMED, _PLAIN)) -> Any:
    targets = [ScriptedTarget("a", diary), ScriptedTarget("b", diary)]
    plan = session.Plan(workloads=workloads, rounds=2, order=order, settle_seconds=0.0)
    return session.carry_out(plan, targets, _NO_CLIENTS, lambda _: None)


def test_targets_take_turns_and_none_is_always_first() -> None:
    diary: list[str] = []
    _, runs = _measure("in turn", diary)
    assert diary == [
        *("a starts", "b starts"),
        *("a streamed 0", "b streamed 0", "a plain 0", "b plain 0"),
        *("b streamed 1", "a streamed 1", "b plain 1", "a plain 1"),
        *("b stops", "a stops"),
    ]
    assert len(runs) == 8


@pytest.mark.parametrize("names, pauses", [("ab", [0.5] * 4), ("a", [0])])
def test_who_was_measured_has_time_to_come_to_rest_before_the_next(
    names: str, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(session.time, "sleep", slept.append)
    plan = session.Plan(workloads=[_STREAMED] * (len(pauses) // len(names)), rounds=1, settle_seconds=0.5)
    session.carry_out(plan, [ScriptedTarget(name, []) for name in names], _NO_CLIENTS, lambda _: None)
    assert slept == pauses


def test_targets_started_side_by_side_have_no_timed_start() -> None:
    diary: list[str] = []
    starts, runs = _measure("at once", diary)
    assert starts == [] and len(runs) == 8
    assert sorted(diary[:2]) == ["a starts", "b starts"]


def test_a_warm_up_is_short_and_not_measured() -> None:
    asked: list[tuple[int, int]] = []

    class Noted(ScriptedTarget):
        def run(self, clients: Clients, workload: Workload, round_number: int) -> Seen:
            asked.append((round_number, workload.max_tokens))
            return super().run(clients, workload, round_number)

    plan = session.Plan(workloads=[Workload(requests=1, concurrency=1, max_tokens=500)], rounds=1)
    _, runs = session.carry_out(plan, [Noted("a", [])], _NO_CLIENTS, lambda _: None)
    assert asked == [(-1, 2), (-2, 32), (0, 500)]
    assert [run.round_number for run in runs] == [0]


def test_alone_holds_one_target_at_a_time() -> None:
    diary: list[str] = []
    _measure("alone", diary, workloads=(_STREAMED,))
    assert diary == [
        *("a starts", "a streamed 0", "a stops", "b starts", "b streamed 0", "b stops"),
        *("b starts", "b streamed 1", "b stops", "a starts", "a streamed 1", "a stops"),
    ]


def test_a_target_is_left_out_of_a_workload_whose_route_it_lacks() -> None:
    _, runs = _measure("in turn", [], workloads=(_STREAMED, Workload(route="native")))
    assert {run.workload for run in runs} == {_STREAMED.label}


def test_a_route_that_no_target_has_is_an_error() -> None:
    with pytest.raises(TargetError, match="no target has a route"):
        _measure("in turn", [], workloads=(Workload(route="native"),))


def test_everything_is_stopped_when_a_first_request_fails() -> None:
    diary: list[str] = []
    targets = [ScriptedTarget("a", diary), ScriptedTarget("b", diary, fails=True)]
    with pytest.raises(TargetError, match="b: the first request failed: refused"):
        session.carry_out(session.Plan(workloads=[_STREAMED]), targets, _NO_CLIENTS, lambda _: None)
    assert diary == ["a starts", "b starts", "b stops", "a stops"]


def test_a_target_that_ran_already_has_no_start_to_time() -> None:
    starts, runs = _measure("in turn", [])
    assert starts == [] and {run.usage for run in runs} == {None}


def test_requests_are_dealt_evenly_and_all_of_them() -> None:
    shares = deal(offers(Workload(requests=10, concurrency=10), 0), concurrency=10, processes=4)
    assert sorted(offer.index for share, _ in shares for offer in share) == list(range(10))
    assert [concurrency for _, concurrency in shares] == [3, 3, 2, 2]


def test_no_process_gets_nothing_to_do() -> None:
    assert len(deal([Offer(0, 0.0, "x")], concurrency=5, processes=4)) == 1
    assert len(deal([Offer(n, 0.0, "x") for n in range(9)], concurrency=2, processes=4)) == 2
