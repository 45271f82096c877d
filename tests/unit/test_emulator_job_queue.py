"""The local platform's job states, times and losses, with a clock that the test moves."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from worker_vllm.emulator.job_queue import JobQueue
from worker_vllm.emulator.job_record import Job, JobState
from worker_vllm.emulator.policy import Policy
from worker_vllm.emulator.submission import default_submission
from worker_vllm.emulator.wire import WireError


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class Bench:
    """A queue, its clock, and what it told others."""

    def __init__(self, **choices: Any) -> None:
        self.clock = Clock()
        self.policy = dataclasses.replace(Policy(), **choices)
        self.queue = JobQueue(self.policy, self.clock)
        self.stops: list[tuple[str, str]] = []
        self.ended: list[Job] = []
        self.queue.on_stop = lambda worker_id, job_id: self.stops.append((worker_id, job_id))
        self.queue.on_end = self.ended.append

    def submit(self, *, sync: bool = False, **changes: Any) -> Job:
        submission = dataclasses.replace(default_submission({"n": 1}, self.policy), **changes)
        return self.queue.submit(submission, sync=sync)

    def take(self, worker_id: str = "w", limit: int = 1) -> Job:
        (job,) = self.queue.take(worker_id, limit)
        return job

    def running(self, worker_id: str = "w", **changes: Any) -> Job:
        self.submit(**changes)
        return self.take(worker_id)

    def gone(self, job: Job) -> bool:
        try:
            self.queue.get(job.id)
        except WireError as error:
            assert error.status == 404
            return True
        return False


def test_ids_carry_the_region_and_runsync_its_prefix() -> None:
    bench = Bench()
    uuid = r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"
    assert re.fullmatch(uuid + "-u1", bench.submit().id)
    assert re.fullmatch(f"sync-{uuid}-u1", bench.submit(sync=True).id)


def test_a_job_goes_from_queue_to_worker_to_result() -> None:
    bench = Bench()
    job = bench.submit()
    assert job.view() == {"id": job.id, "status": "IN_QUEUE"}
    bench.clock.advance(1.5)
    assert bench.take("w") is job
    assert job.view() == {"id": job.id, "status": "IN_PROGRESS", "delayTime": 1500, "workerId": "w"}
    bench.clock.advance(0.25)
    assert bench.queue.finish(job, "w", output=[1]) == "accepted"
    assert job.view() == {
        "id": job.id,
        "status": "COMPLETED",
        "delayTime": 1500,
        "executionTime": 250,
        "workerId": "w",
        "output": [1],
    }
    assert bench.ended == [job]
    assert bench.queue.totals() == {"completed": 1, "failed": 0, "inProgress": 0, "inQueue": 0, "retried": 0}


def test_jobs_are_handed_out_in_order_and_at_most_as_many_as_asked_for() -> None:
    bench = Bench()
    first, second, third = (bench.submit() for _ in range(3))
    assert bench.queue.take("w", 2) == [first, second]
    assert bench.queue.take("x", 2) == [third]
    assert bench.queue.take("x", 2) == []


def test_an_error_fails_the_job_and_leaves_its_output_readable() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.finish(job, "w", output={"status": 400}, error="bad")
    view = job.view()
    assert (view["status"], view["error"], view["output"]) == ("FAILED", "bad", {"status": 400})


def test_a_result_without_output_shows_none() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.finish(job, "w")
    assert job.state is JobState.COMPLETED
    assert "output" not in job.view()


def test_progress_shows_until_the_result_and_is_dropped_after_it() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.progress(job, "w", "half")
    assert job.view()["output"] == "half"
    bench.queue.finish(job, "w", output="all")
    assert bench.queue.progress(job, "w", "late") == "duplicate"
    assert job.view()["output"] == "all"


def test_chunks_are_had_once() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.add_chunks(job, "w", ["a"])
    bench.queue.add_chunks(job, "w", ["b"])
    assert job.drain() == ["a", "b"]
    assert job.drain() == []


def test_the_second_result_changes_nothing_and_is_counted() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.finish(job, "w", output=1)
    assert bench.queue.finish(job, "w", output=2) == "duplicate"
    assert job.view()["output"] == 1
    assert bench.ended == [job]
    assert (bench.queue.counts["accepted"], bench.queue.counts["duplicate"]) == (1, 1)


# --- retention and ttl


@pytest.mark.parametrize(("sync", "seconds"), [(False, 1800), (True, 60)])
def test_a_finished_job_is_kept_for_its_retention(sync: bool, seconds: float) -> None:
    bench = Bench()
    job = bench.running(sync=sync)
    bench.queue.finish(job, "w", output=1)
    bench.clock.advance(seconds - 1)
    assert not bench.gone(job)
    bench.clock.advance(1)
    assert bench.gone(job)


def test_status_ttl_sets_the_retention_from_now_on() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.finish(job, "w", output=1)
    bench.queue.keep_for(job, 6)
    bench.clock.advance(5)
    assert not bench.gone(job)
    bench.clock.advance(1)
    assert bench.gone(job)


def test_status_ttl_of_an_unfinished_job_counts_from_its_end() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.keep_for(job, 6)
    bench.clock.advance(100)
    assert not bench.gone(job)
    bench.queue.finish(job, "w", output=1)
    bench.clock.advance(6)
    assert bench.gone(job)


def test_at_its_ttl_a_queued_job_is_gone() -> None:
    bench = Bench()
    job = bench.submit(ttl_ms=10_000)
    bench.clock.advance(10)
    assert bench.gone(job)
    assert bench.queue.take("w", 1) == []
    assert job.removed


def test_at_its_ttl_a_queued_job_can_time_out_instead() -> None:
    bench = Bench(ttl_in_queue="timed_out")
    job = bench.submit(ttl_ms=10_000)
    bench.clock.advance(10)
    bench.queue.sweep()
    assert job.state is JobState.TIMED_OUT
    assert job.view()["workerId"] == ""
    assert bench.queue.take("w", 1) == []
    bench.clock.advance(1800)
    assert bench.gone(job)


def test_at_its_ttl_a_running_job_is_gone_and_its_worker_is_told() -> None:
    bench = Bench()
    job = bench.running(ttl_ms=10_000)
    bench.clock.advance(10)
    assert bench.gone(job)
    assert bench.stops == [("w", job.id)]


def test_a_ttl_shorter_than_the_retention_wins() -> None:
    bench = Bench()
    job = bench.running(ttl_ms=10_000)
    bench.clock.advance(9)
    bench.queue.finish(job, "w", output=1)
    bench.clock.advance(1)
    assert bench.gone(job)


def test_execution_timeout_ends_a_running_job_and_stops_it() -> None:
    bench = Bench()
    job = bench.submit(execution_timeout_ms=5_000)
    bench.clock.advance(100)  # waiting does not count
    bench.take()
    bench.clock.advance(4.9)
    bench.queue.sweep()
    assert job.state is JobState.IN_PROGRESS
    bench.clock.advance(0.1)
    bench.queue.sweep()
    assert job.state is JobState.TIMED_OUT
    assert job.view()["error"] == "job timed out"
    assert bench.stops == [("w", job.id)]
    assert bench.queue.totals()["failed"] == 1


# --- cancel, retry, purge


def test_cancelling_a_queued_job_takes_it_out_of_the_queue() -> None:
    bench = Bench()
    job = bench.submit()
    bench.queue.cancel(job)
    assert job.state is JobState.CANCELLED
    assert bench.queue.take("w", 1) == []
    assert bench.stops == []


def test_cancelling_a_running_job_stops_it_and_its_late_result_is_dropped() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.cancel(job)
    assert bench.stops == [("w", job.id)]
    assert bench.queue.finish(job, "w", output=1) == "duplicate"
    assert job.view()["status"] == "CANCELLED"
    assert "output" not in job.view()


def test_cancelling_a_finished_job_leaves_it_as_it_is() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.finish(job, "w", output=1)
    bench.queue.cancel(job)
    assert job.state is JobState.COMPLETED


def test_a_failed_job_is_retried_under_its_id_without_its_old_output() -> None:
    bench = Bench()
    job = bench.running()
    bench.queue.add_chunks(job, "w", ["old"])
    bench.queue.finish(job, "w", output=0, error="bad")
    bench.queue.retry(job)
    assert job.view() == {"id": job.id, "status": "IN_QUEUE"}
    bench.clock.advance(2)
    assert bench.take("x") is job
    assert job.view()["delayTime"] == 2000
    assert job.drain() == []
    bench.queue.finish(job, "x", output=1)
    assert job.view()["output"] == 1
    assert bench.queue.totals()["retried"] == 1


@pytest.mark.parametrize("state", ["queued", "running", "completed", "cancelled"])
def test_only_failed_and_timed_out_jobs_are_retried(state: str) -> None:
    bench = Bench(retry_refused_status=409)
    job = bench.submit()
    if state != "queued":
        bench.take()
    if state == "completed":
        bench.queue.finish(job, "w", output=1)
    if state == "cancelled":
        bench.queue.cancel(job)
    with pytest.raises(WireError) as caught:
        bench.queue.retry(job)
    assert caught.value.status == 409


def test_a_job_that_expired_in_the_queue_gets_a_new_ttl_when_retried() -> None:
    bench = Bench(ttl_in_queue="timed_out")
    job = bench.submit(ttl_ms=10_000)
    bench.clock.advance(10)
    bench.queue.sweep()
    bench.queue.retry(job)
    bench.clock.advance(9)
    assert not bench.gone(job)
    assert bench.take() is job


def test_purge_forgets_queued_jobs_and_leaves_running_ones() -> None:
    bench = Bench()
    running = bench.running()
    queued = [bench.submit() for _ in range(3)]
    assert bench.queue.purge() == 3
    assert all(bench.gone(job) for job in queued)
    assert not bench.gone(running)


# --- lost workers


def test_a_lost_worker_s_job_is_queued_again_first_and_fails_at_the_second_loss() -> None:
    bench = Bench()
    job = bench.running("a")
    bench.submit()
    bench.queue.add_chunks(job, "a", ["half"])
    bench.queue.worker_gone("a")
    assert job.view() == {"id": job.id, "status": "IN_QUEUE", "retries": 1}
    assert bench.take("b") is job
    assert job.drain() == []
    bench.queue.worker_gone("b")
    view = job.view()
    assert (view["status"], view["error"], view["retries"]) == ("FAILED", "job timed out after 1 retries", 1)
    assert {"delayTime", "executionTime", "workerId"} <= view.keys()


def test_pings_that_name_the_job_keep_it() -> None:
    bench = Bench(lost_after_s=30)
    job = bench.running()
    for _ in range(10):
        bench.clock.advance(20)
        bench.queue.seen("w", [job.id])
        bench.queue.sweep()
    assert job.state is JobState.IN_PROGRESS


@pytest.mark.parametrize("still_pings", [True, False])
def test_a_job_that_pings_no_longer_name_is_lost(still_pings: bool) -> None:
    """A worker that pings without it does not have it; an order to drop it could hit the job's next run."""
    bench = Bench(lost_after_s=30)
    job = bench.running()
    bench.queue.seen("w", [job.id])
    bench.clock.advance(20)
    if still_pings:
        bench.queue.seen("w", [])
    bench.clock.advance(20)
    bench.queue.sweep()
    assert job.state is JobState.IN_QUEUE
    assert job.retries == 1
    assert bench.stops == ([] if still_pings else [("w", job.id)])


def test_streaming_counts_as_a_sign_of_life() -> None:
    bench = Bench(lost_after_s=30)
    job = bench.running()
    bench.queue.seen("w", [])
    bench.clock.advance(20)
    bench.queue.add_chunks(job, "w", ["x"])
    bench.clock.advance(20)
    bench.queue.sweep()
    assert job.state is JobState.IN_PROGRESS


def test_a_worker_that_never_pings_is_not_lost_by_silence() -> None:
    bench = Bench(lost_after_s=30)
    job = bench.running(execution_timeout_ms=600_000)
    bench.clock.advance(500)
    bench.queue.sweep()
    assert job.state is JobState.IN_PROGRESS


def test_a_result_from_the_lost_worker_is_dropped() -> None:
    bench = Bench()
    job = bench.running("a")
    bench.queue.worker_gone("a")
    assert bench.queue.finish(job, "a", output="old") == "late"
    bench.take("b")
    assert bench.queue.add_chunks(job, "a", ["old"]) == "late"
    bench.queue.finish(job, "b", output="new")
    assert job.view()["output"] == "new"


def test_a_result_from_the_lost_worker_can_be_accepted_instead() -> None:
    bench = Bench(late_result="accept")
    job = bench.running("a")
    bench.queue.worker_gone("a")
    bench.take("b")
    assert bench.queue.finish(job, "a", output="old") == "accepted"
    assert bench.stops == [("b", job.id)]
    assert job.view()["workerId"] == "a"
    assert bench.queue.take("c", 1) == []


def test_a_retry_by_hand_gives_a_lost_job_its_automatic_retry_back() -> None:
    bench = Bench()
    job = bench.running("a")
    bench.queue.worker_gone("a")
    bench.take("a")
    bench.queue.worker_gone("a")
    assert job.state is JobState.FAILED
    bench.queue.retry(job)
    bench.take("a")
    bench.queue.worker_gone("a")
    assert job.state is JobState.IN_QUEUE
