"""Jobs that come together go to the engine one after the other, not all at the end.

Bringing a job to the engine takes a millisecond or two of the loop, in some thirty steps between which others
run: of 256 jobs that arrive at once and take their steps in turn, the first is through when the last is. In
line, half of them are through in half of the time, and the engine has work meanwhile.
"""

from __future__ import annotations

import asyncio

PLACES = 16
"""Jobs on their way at once: enough for vLLM to tokenize together, few enough to be quick."""
LONGEST_SECONDS = 0.05
"""How long a job keeps its place: one that waits for something, an image say, must not hold up the others."""


class Line:
    """The line of one event loop."""

    def __init__(self, places: int = PLACES, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._places = asyncio.Semaphore(places)
        self._longest_seconds = longest_seconds

    async def enter(self) -> Place:
        """Wait for a place. Whoever has it leaves it, or loses it."""
        await self._places.acquire()
        return Place(self._places, self._longest_seconds)


class Place:
    """A place at the head of the line."""

    def __init__(self, places: asyncio.Semaphore, longest_seconds: float) -> None:
        self._places: asyncio.Semaphore | None = places
        self._timer = asyncio.get_running_loop().call_later(longest_seconds, self.leave)

    def leave(self) -> None:
        """Let the next one go. Repeatable."""
        if self._places is not None:
            self._timer.cancel()
            self._places.release()
            self._places = None
