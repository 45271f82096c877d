"""vLLM's own queues in shared memory, as the engine and its workers use them, when notifications are lost."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from worker_vllm import vllm_compat, vllm_queues

pytestmark = pytest.mark.engine

IDLE_SECONDS = 1.2
"""After one second without a message a reader sleeps until it is notified."""


@pytest.fixture
def queue() -> Iterator[tuple[Any, Any]]:
    """A queue's writing and reading end; what is written notifies nobody."""
    from vllm.distributed import utils
    from vllm.distributed.device_communicators.shm_broadcast import MessageQueue

    condition = vllm_compat.load("SpinCondition")
    wait, switch = condition.wait, utils.USE_SCHED_YIELD
    # an engine that another test has started in this process waits well already
    condition.wait, utils.USE_SCHED_YIELD = getattr(wait, "__wrapped__", wait), True
    writer = MessageQueue(n_reader=1, n_local_reader=1)
    writer._spin_condition.notify = lambda: None
    reader = MessageQueue.create_from_handle(writer.export_handle(), 0)
    yield writer, reader
    condition.wait, utils.USE_SCHED_YIELD = wait, switch


def test_a_sleeping_reader_finds_a_message_whose_notification_was_lost(queue: tuple[Any, Any]) -> None:
    writer, reader = queue
    vllm_queues.wait_well()
    found: list[tuple[Any, float]] = []
    reading = threading.Thread(
        target=lambda: found.append((reader.dequeue(timeout=4), time.monotonic())), daemon=True
    )
    reading.start()
    time.sleep(IDLE_SECONDS)
    written_at = time.monotonic()
    writer.enqueue("a step")
    reading.join(4)
    message, read_at = found[0]
    assert message == "a step"
    assert read_at - written_at < 1


def test_a_readers_own_time_limit_stays(queue: tuple[Any, Any]) -> None:
    _, reader = queue
    vllm_queues.wait_well()
    vllm_queues.wait_well()
    began_at = time.monotonic()
    with pytest.raises(TimeoutError):
        reader.dequeue(timeout=IDLE_SECONDS + 0.3)
    assert IDLE_SECONDS < time.monotonic() - began_at < IDLE_SECONDS + 2


def test_a_reader_that_expects_a_message_leaves_the_cpu_to_others(queue: tuple[Any, Any]) -> None:
    writer, reader = queue

    def waiting() -> float:
        """CPU seconds of a reader that waits for 0.6 s, soon after its last message."""
        writer.enqueue("a step")
        reader.dequeue(timeout=4)
        began_at = time.thread_time()
        with pytest.raises(TimeoutError):
            reader.dequeue(timeout=0.6)
        return time.thread_time() - began_at

    before = waiting()
    vllm_queues.wait_well()
    assert waiting() < before * 0.7
