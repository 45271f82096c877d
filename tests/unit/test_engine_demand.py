"""A stream's outputs are made when its reader asks, and none is lost: against vLLM's own rule for intervals,
which the contract tests hold on to."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker_vllm.engine import demand as demand_module
from worker_vllm.engine.demand import Demand, Streams


class State:
    """One choice's state in vLLM's output processor, as far as intervals go (RequestState.make_request_output
    in 0.26 to 0.33)."""

    def __init__(self, kind: str = "DELTA", interval: int = 1) -> None:
        self.stream_interval = interval
        self.sent_tokens_offset = 0
        self.output_kind = SimpleNamespace(name=kind)
        self.detokenizer = self
        self.tokens: list[int] = []

    def num_output_tokens(self) -> int:
        return len(self.tokens)

    def step(self, token: int, *, finished: bool = False) -> list[int] | None:
        """The token ids of the output that this step's token leads to, if it does to one."""
        self.tokens.append(token)
        if self.stream_interval <= 1:
            return [token]
        held = len(self.tokens) - self.sent_tokens_offset
        if not (finished or self.sent_tokens_offset == 0 or held >= self.stream_interval):
            return None
        ids, self.sent_tokens_offset = self.tokens[self.sent_tokens_offset :], len(self.tokens)
        return ids


@pytest.fixture(autouse=True)
def no_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_module, "SECONDS_PER_STREAM", 0.0)


def tapped(state: State) -> Demand:
    """The demand of a stream whose first output has been taken and delivered."""
    demand = Demand(Streams())
    assert state.step(0) == [0]
    demand.tap([state])
    demand.taken(last=False)
    demand.passed()
    return demand


def test_nothing_is_made_while_the_reader_is_busy_and_all_of_it_when_it_asks() -> None:
    state = State()
    demand = tapped(state)
    assert [state.step(token) for token in (1, 2, 3)] == [None, None, None]
    demand.want()
    assert state.step(4) == [1, 2, 3, 4]


def test_a_reader_that_is_early_gets_the_next_token_at_once() -> None:
    state = State()
    demand = tapped(state)
    demand.want()
    assert state.step(1) == [1]


def test_the_end_comes_at_once() -> None:
    state = State()
    tapped(state)
    assert state.step(1) is None
    assert state.step(2, finished=True) == [1, 2]


@given(st.lists(st.sampled_from(["step", "take", "want", "again"]), max_size=60))
def test_every_token_comes_out_once_and_in_order(moves: list[str]) -> None:
    state = State()
    demand = tapped(state)
    out = [0]
    for move in moves:
        if move == "step":
            ids = state.step(len(state.tokens))
            if ids is not None:
                out += ids
                demand.taken(last=False)
                demand.passed()
        elif move == "take":
            demand.served()
        else:
            demand.want()
    out += state.step(len(state.tokens), finished=True) or []
    assert out == list(range(len(state.tokens)))


def test_a_reader_that_got_nothing_to_see_need_not_ask_again() -> None:
    """A parser that waits for the end of a tool's name takes outputs and hands nothing on."""
    state = State()
    demand = tapped(state)
    demand.want()
    assert state.step(1) == [1]
    demand.taken(last=False)
    assert state.step(2) is None
    demand.passed()
    assert state.step(3) == [2, 3]


def test_vllms_layers_are_settled_when_they_are_back_for_more_and_never_after_the_last() -> None:
    demand = tapped(State())
    assert demand.settled
    demand.taken(last=False)
    assert not demand.settled
    demand.passed()
    assert demand.settled
    demand.taken(last=True)
    demand.passed()
    assert not demand.settled


@pytest.mark.parametrize("state", [State("FINAL_ONLY"), State(interval=8), SimpleNamespace()])
def test_other_requests_are_left_alone(state: Any) -> None:
    before = dict(vars(state))
    demand = Demand(Streams())
    demand.tap([state])
    demand.taken(last=False)
    demand.want()
    assert vars(state) == before


async def test_many_streams_are_further_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demand_module, "SECONDS_PER_STREAM", 0.01)
    streams = Streams()
    state = State()
    with streams.open(), streams.open() as demand:
        state.step(0)
        demand.tap([state])
        demand.taken(last=False)
        demand.passed()
        demand.want()
        assert state.step(1) is None
        await asyncio.sleep(0.03)
        assert state.step(2) == [1, 2]
    assert streams.count == 0


async def test_a_stream_that_has_no_reader_any_more_hands_out_its_end_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(demand_module, "SECONDS_PER_STREAM", 0.001)
    state = State()
    with Streams().open() as demand:
        state.step(0)
        demand.tap([state])
        demand.taken(last=False)
        demand.want()
    await asyncio.sleep(0.005)
    demand.want()
    assert state.step(1) is None
    assert state.step(2, finished=True) == [1, 2]
