"""Hygiene for every test: nothing leaks from one into the next, and nothing leaves this machine."""

from __future__ import annotations

import ipaddress
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Time says nothing about a property on a machine that others use too, and found examples belong into a test.
settings.register_profile("house", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("house")

_connect = socket.socket.connect
_connect_ex = socket.socket.connect_ex


@pytest.fixture(autouse=True)
def environment_is_restored() -> Iterator[None]:
    """vLLM, the SDK and our own start-up write to the process's environment."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    for name, value in before.items():
        if os.environ.get(name) != value:
            os.environ[name] = value


@pytest.fixture(autouse=True)
def our_logging_is_restored() -> Iterator[None]:
    """`log.configure` takes the package's logger away from pytest's own capture, and what vLLM imports raises
    the root's level."""
    logging.getLogger().setLevel(logging.WARNING)  # Python's own
    package = logging.getLogger("worker_vllm")
    before = (list(package.handlers), package.level, package.propagate)
    yield
    package.handlers[:], package.propagate = before[0], before[2]
    package.setLevel(before[1])


@pytest.fixture(autouse=True, scope="session")
def no_network_beyond_loopback() -> Iterator[None]:
    """A test that reaches for the network fails at once and says where it wanted to go."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda self, address: _connect(self, _local(self, address)))
        patch.setattr(
            socket.socket, "connect_ex", lambda self, address: _connect_ex(self, _local(self, address))
        )
        yield


def _local(sock: socket.socket, address: Any) -> Any:
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return address
    host = str(address[0])
    # A datagram socket that "connects" sends nothing: it is how programs find out their own address.
    if sock.type == socket.SOCK_DGRAM or host == "localhost" or ipaddress.ip_address(host).is_loopback:
        return address
    raise OSError(f"tests stay on this machine; something wanted to connect to {host}")
