"""A job cancelled in each of its phases: its generator is closed, nothing is posted for it, others go on."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.contract.scripted_platform import Platform, Worker, chat, native, serving

STUCK = ["stuck"]
ITEM = {"choices": [{"tokens": ["x"]}]}
ABORT_SECONDS = 0.3
"""From the stop's arrival to the generator's `finally`. On an idle machine it takes a few milliseconds."""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, Worker]]:
    with serving(tmp_path_factory.mktemp("worker"), MAX_CONCURRENCY="4") as running:
        yield running


@pytest.fixture
def platform(running: tuple[Platform, Worker]) -> Iterator[Platform]:
    yield running[0]
    running[0].post_delay = 0.0


@pytest.fixture
def worker(running: tuple[Platform, Worker]) -> Worker:
    return running[1]


def assert_cancelled(platform: Platform, worker: Worker, job_id: str, how: str) -> None:
    cancelled_at = time.time()
    platform.cancel(job_id)
    ended = platform.wait_for(lambda: worker.ended(job_id))
    assert ended["how"] == how
    assert ended["at"] - cancelled_at < ABORT_SECONDS
    platform.wait_for(lambda: f"job {job_id} " in worker.log and "finish=cancelled" in worker.log)
    after = len(platform.posts)
    platform.offer(native(f"after-{job_id}", ["yield", ITEM]))
    assert platform.done(f"after-{job_id}") == {"output": [ITEM]}
    assert not [post for post in platform.posts[after:] if post.job_id == job_id]


def test_before_the_first_chunk(platform: Platform, worker: Worker) -> None:
    platform.offer(native("early", STUCK))
    platform.wait_for(lambda: worker.began("early"))
    assert_cancelled(platform, worker, "early", "cancelled")


def test_in_mid_stream_while_other_jobs_go_on(platform: Platform, worker: Worker) -> None:
    platform.offer(
        native("mid", ["yield", ITEM], STUCK),
        native("other", ["yield", ITEM], ["sleep", 1.5], ["yield", ITEM]),
    )
    platform.wait_for(lambda: platform.streamed("mid") and platform.streamed("other"))
    assert_cancelled(platform, worker, "mid", "cancelled")
    assert platform.done("other") == {"output": [ITEM, ITEM]}


def test_while_the_sdk_is_posting_a_chunk(platform: Platform, worker: Worker) -> None:
    """The SDK does not close the generator then; the end of its task does."""
    platform.post_delay = 3.0
    platform.offer(chat("posting", ["yield", "data: 1\n\n"], STUCK))
    platform.wait_for(lambda: worker.began("posting"))
    time.sleep(0.3)
    platform.post_delay = 0.0
    assert_cancelled(platform, worker, "posting", "closed")


def test_a_job_that_waits_behind_a_full_worker_is_not_in_the_worker(
    platform: Platform, worker: Worker
) -> None:
    """A full worker asks for nothing, so a job that cannot run stays with the platform, where it can be
    cancelled."""
    platform.offer(*(native(f"full-{n}", ["yield", ITEM], ["sleep", 3.0]) for n in range(4)))
    platform.wait_for(lambda: all(worker.began(f"full-{n}") for n in range(4)))
    platform.offer(native("waiting", ["yield", ITEM]))
    time.sleep(0.5)
    assert not worker.began("waiting")
    assert platform.done("waiting") == {"output": [ITEM]}
    platform.wait_for(lambda: all(worker.ended(f"full-{n}") for n in range(4)))
    first_end = min(worker.ended(f"full-{n}")["at"] for n in range(4))  # type: ignore[index]
    began = next(e["at"] for e in worker.events if e["event"] == "began" and e["id"] == "waiting")
    assert began - first_end < 0.5, "a freed slot is filled at once"


def test_after_the_end_it_changes_nothing(platform: Platform, worker: Worker) -> None:
    platform.offer(native("over", ["yield", ITEM]))
    platform.done("over")
    platform.cancel("over", "never-heard-of")
    platform.offer(native("next", ["yield", ITEM]))
    assert platform.done("next") == {"output": [ITEM]}


def test_no_more_than_max_concurrency_run_at_once(platform: Platform, worker: Worker) -> None:
    before = len(worker.events)
    platform.offer(*(native(f"limit-{n}", ["sleep", 0.6], ["yield", ITEM]) for n in range(12)))
    for n in range(12):
        platform.done(f"limit-{n}")
    running = most = 0
    for event in worker.events[before:]:
        running += {"began": 1, "ended": -1}.get(event["event"], 0)
        most = max(most, running)
    assert most == 4
