"""What several of these files stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.fake_hub import FakeHub, hurry, serving


@pytest.fixture(scope="module")
def hub_server() -> Iterator[FakeHub]:
    with serving(FakeHub()) as hub:
        yield hub


@pytest.fixture
def hub(hub_server: FakeHub, monkeypatch: pytest.MonkeyPatch) -> FakeHub:
    """An empty hub, and nobody who waits for it."""
    hub_server.clear()
    hurry(monkeypatch)
    return hub_server
