"""What a stream costs between two posts: nothing but the text itself.

A chunk takes a round trip of the platform, and the next one is asked for after it. vLLM would make an output
of each token meanwhile, an event of each output, and merge nothing that its own OpenAI layer has already
taken: 75 µs a token, for work that nobody sees. So an engine request's state is shut while its reader is busy
and opened when the reader asks: the next step's output then holds all tokens since. A first and a last token
always come out at once, and the text is decoded token by token as ever.

It uses the two fields by which vLLM's `stream_interval` works (RequestState, 0.26 to 0.33); a version without
them streams as vLLM does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

SECONDS_PER_STREAM = 0.0015
"""How far apart a stream's chunks are at least, times the streams of this worker: delivering a chunk costs
about half a millisecond of the one loop that also feeds the engine. It is felt from some dozen streams on."""

_SHUT = _MANY = 1 << 30


class Streams:
    """How many streams this worker has, which paces each of them."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def open(self) -> Iterator[Demand]:
        """One more stream, for the block."""
        self.count += 1
        demand = Demand(self)
        try:
            yield demand
        finally:
            self.count -= 1
            demand.close()


class Demand:
    """One stream's reader, as the engine requests behind it see it; and they, as the reader does."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._taps: list[Tap] = []
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._is_wanted = False
        self._closed = False
        self._on_their_way = 0

    @property
    def settled(self) -> bool:
        """Whether vLLM's layers above the engine are through with what they were given: they wait for the
        next output. After the last one they are not before the stream's own end."""
        return self._on_their_way == 0

    def tap(self, states: Sequence[Any]) -> None:
        """Take charge of one engine request: vLLM's states of it, one per choice."""
        self._taps.append(Tap(states))

    def taken(self, *, last: bool) -> None:
        """An output is on its way to the reader: nothing more is made until it asks."""
        self._on_their_way = _MANY if last else self._on_their_way + 1
        self._stop_timer()
        for tap in self._taps:
            tap.shut()
        self._due = time.monotonic() + self._streams.count * SECONDS_PER_STREAM

    def passed(self) -> None:
        """Whoever took the output is back for the next. It may have made nothing of it that the reader would
        see, as a parser does that waits for the end of a tool's name; then the reader still waits."""
        self._on_their_way -= 1
        if self._is_wanted:
            self.want()

    def want(self) -> None:
        """The reader asks for what there is, or for the next token, until it is `served`."""
        self._is_wanted = True
        if not self._taps or self._timer is not None or self._closed:
            return
        delay = self._due - time.monotonic()
        if delay <= 0:
            self._open()
        else:
            self._timer = asyncio.get_running_loop().call_later(delay, self._open)

    def served(self) -> None:
        """The reader has something to deliver."""
        self._is_wanted = False
        self._stop_timer()

    def close(self) -> None:
        """The stream has no reader any more. Its requests, should some run on, hand out their end alone."""
        self._closed = True
        self._stop_timer()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _open(self) -> None:
        self._timer = None
        for tap in self._taps:
            tap.open()


class Tap:
    """One engine request's states in vLLM's output processor: several where it has several choices."""

    def __init__(self, states: Sequence[Any]) -> None:
        self._states = [state for state in states if _is_plain_delta(state)]

    def shut(self) -> None:
        """Make no output but the first and the last."""
        for state in self._states:
            if state.stream_interval == 1:
                # vLLM does not keep this figure at an interval of one, where each token goes out by itself
                state.sent_tokens_offset = state.detokenizer.num_output_tokens()
            state.stream_interval = _SHUT

    def open(self) -> None:
        """Make one of the next token, with those that were held."""
        for state in self._states:
            held = state.detokenizer.num_output_tokens() - state.sent_tokens_offset
            # at two or more vLLM hands out all that it has not, once these are two: the held one and the next
            state.stream_interval = 2 if held else 1


def _is_plain_delta(state: Any) -> bool:
    """Whether the state hands out each token as it comes: a user may have chosen an interval."""
    return (
        getattr(state, "stream_interval", None) == 1
        and hasattr(state, "sent_tokens_offset")
        and state.detokenizer is not None
        and state.output_kind.name == "DELTA"
    )
