"""A wake-up call for any number of waiters, made for long polls."""

from __future__ import annotations

import asyncio


class Pulse:
    """Wakes everyone who is waiting now; remembers nothing. Needs a running loop only to wait, not to be
    made.
    """

    def __init__(self) -> None:
        self._waiters: list[asyncio.Future[bool]] = []

    def fire(self) -> None:
        """Wake every present waiter, the longest-waiting first."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            _settle(waiter, True)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for the next `fire`; false when `timeout_s` passed first."""
        if timeout_s <= 0:
            return False
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[bool] = loop.create_future()
        self._waiters.append(waiter)
        # a timer of its own: `asyncio.wait_for` costs each stream a twentieth of the platform's time
        timer = loop.call_later(timeout_s, _settle, waiter, False)
        try:
            return await waiter
        finally:
            timer.cancel()
            if waiter in self._waiters:
                self._waiters.remove(waiter)


def _settle(waiter: asyncio.Future[bool], fired: bool) -> None:
    if not waiter.done():
        waiter.set_result(fired)
