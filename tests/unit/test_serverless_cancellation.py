"""A lease on a job's stream: who ends it, when, and what is left afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

from worker_vllm.errors import DeadlineError, RequestError, ShuttingDownError
from worker_vllm.serverless.cancellation import JobLease, Jobs, Limit


class Stream:
    """A stream that yields "a" and then waits; it notes how it ended."""

    def __init__(self, chunks: tuple[str, ...] = ("a",), then: str = "wait") -> None:
        self.ended = ""
        self._chunks = chunks
        self._then = then

    async def run(self) -> AsyncGenerator[str, None]:
        try:
            for chunk in self._chunks:
                yield chunk
            if self._then == "wait":
                await asyncio.Event().wait()
            if self._then == "fail":
                raise RequestError("no")
            self.ended = "finished"
        except asyncio.CancelledError:
            self.ended = "cancelled"
            raise
        except GeneratorExit:
            self.ended = "closed"
            raise


class Handler:
    """What a handler and the SDK do with a lease, in a task of its own."""

    def __init__(self, jobs: Jobs, stream: Stream, post: Callable[[], Any] | None = None) -> None:
        self.chunks: list[Any] = []
        self.failure: BaseException | None = None
        self.releases = 0
        self.lease: JobLease | None = None
        self.task = asyncio.get_running_loop().create_task(self._run(jobs, stream, post))

    async def _run(self, jobs: Jobs, stream: Stream, post: Callable[[], Any] | None) -> None:
        self.lease = lease = jobs.open(stream.run(), on_release=self._count)
        try:
            while True:
                chunk = await lease.next()
                with lease.posting():
                    self.chunks.append(chunk)
                    if post is not None:
                        await post()
        except StopAsyncIteration:
            lease.release()
        except Exception as error:
            self.failure = error

    def _count(self) -> None:
        self.releases += 1


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_stream_that_ends_is_read_to_its_end() -> None:
    jobs, stream = Jobs(), Stream(("a", "b"), "end")
    handler = Handler(jobs, stream)
    await handler.task
    await settle()
    assert (handler.chunks, stream.ended, handler.releases, len(jobs)) == (["a", "b"], "finished", 1, 0)


async def test_the_sdks_cancel_while_it_waits_goes_through_the_stream() -> None:
    jobs, stream = Jobs(), Stream()
    handler = Handler(jobs, stream)
    await settle()
    handler.task.cancel()
    await settle()
    assert handler.task.cancelled()
    assert (stream.ended, handler.releases, len(jobs)) == ("cancelled", 1, 0)


async def test_the_sdks_cancel_while_it_posts_closes_the_stream_all_the_same() -> None:
    jobs, stream = Jobs(), Stream()
    handler = Handler(jobs, stream, post=asyncio.Event().wait)
    await settle()
    assert handler.chunks == ["a"]
    handler.task.cancel()
    await settle()
    assert handler.task.cancelled()
    assert (stream.ended, handler.releases, len(jobs)) == ("closed", 1, 0)


async def test_fail_ends_a_waiting_job_with_the_error() -> None:
    jobs, stream = Jobs(), Stream()
    handler = Handler(jobs, stream)
    await settle()
    error = DeadlineError("late")
    assert handler.lease
    handler.lease.fail(error)
    await handler.task
    assert handler.failure is error
    assert stream.ended == "cancelled"
    assert handler.task.cancelling() == 0, "the task may go on and deliver the error"


async def test_fail_while_a_chunk_is_posted_waits_for_the_post() -> None:
    posted = asyncio.Event()
    jobs, stream = Jobs(), Stream()
    handler = Handler(jobs, stream, post=posted.wait)
    await settle()
    error = ShuttingDownError("bye")
    jobs.fail_all(error)
    await settle()
    assert not handler.task.done()
    posted.set()
    await handler.task
    await settle()
    assert handler.failure is error
    assert (stream.ended, len(jobs)) == ("closed", 0)


async def test_the_sdks_cancel_wins_over_fail() -> None:
    jobs, stream = Jobs(), Stream()
    handler = Handler(jobs, stream)
    await settle()
    jobs.fail_all(ShuttingDownError("bye"))
    handler.task.cancel()
    await settle()
    assert handler.task.cancelled()
    assert handler.failure is None


async def test_after_fail_all_a_new_job_fails_before_its_stream_begins() -> None:
    jobs, stream = Jobs(), Stream()
    error = ShuttingDownError("bye")
    jobs.fail_all(error)
    handler = Handler(jobs, stream)
    await handler.task
    assert (handler.failure, handler.chunks, stream.ended) == (error, [], "")


async def test_a_job_that_failed_by_itself_keeps_its_own_error() -> None:
    jobs, stream = Jobs(), Stream((), "fail")
    handler = Handler(jobs, stream)
    await handler.task
    assert handler.lease
    assert isinstance(handler.failure, RequestError)
    assert handler.lease.failure is None


async def test_time_counts_only_where_it_is_counted() -> None:
    jobs, stream = Jobs(), Stream()
    late = DeadlineError("late")
    lease_made = asyncio.Event()
    failures: list[Any] = []

    async def handle() -> None:
        lease = jobs.open(stream.run(), limits=[Limit(1.0, late)])
        await lease.next()
        lease_made.set()
        try:
            await lease.next()
        except DeadlineError as error:
            failures.append(error)

    task = asyncio.get_running_loop().create_task(handle())
    await lease_made.wait()
    jobs.grow_older(0.6)
    await settle()
    assert not failures
    jobs.grow_older(0.6)
    await task
    assert failures == [late]


async def test_waiting_until_empty_includes_delivery_and_closing() -> None:
    jobs, stream = Jobs(), Stream()
    posted = asyncio.Event()
    handler = Handler(jobs, stream, post=posted.wait)
    await settle()
    waiter = asyncio.get_running_loop().create_task(jobs.wait_until_empty())
    jobs.fail_all(ShuttingDownError("bye"))
    await settle()
    assert not waiter.done()
    posted.set()
    await asyncio.wait_for(waiter, 1)
    assert handler.task.done()
    assert stream.ended == "closed"


async def test_a_stream_that_fails_while_it_is_closed_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def stubborn() -> AsyncGenerator[str, None]:
        try:
            yield "a"
        finally:
            raise ValueError("while closing")

    jobs = Jobs()

    async def handle() -> None:
        lease = jobs.open(stubborn())
        await lease.next()
        lease.release()

    await asyncio.get_running_loop().create_task(handle())
    await jobs.wait_until_empty()
    assert "while it was closed" in caplog.text
