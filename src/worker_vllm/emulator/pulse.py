"""A wake-up call for any number of waiters, made for long polls."""

from __future__ import annotations

import asyncio


class Pulse:
    """Wakes everyone who is waiting now; remembers nothing. Needs a running loop only to wait, not to be
    made.
    """

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[None]] = []

    def fire(self) -> None:
        """Wake every present waiter, the longest-waiting first."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the next `fire`; false when `timeout_s` passed first."""
        if timeout_s <= 0:
            return False
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            await asyncio.wait_for(waiter, timeout_s)
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
        return True
