"""What happens to results and chunks when the platform's side of the wire fails, before and after it has
accepted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from tests.contract.scripted_platform import Platform, Post, Worker, chat, native, running_worker, serving

TOKENS = ["yield", {"choices": [{"tokens": ["a"]}]}], ["yield", {"choices": [{"tokens": ["b"]}]}]
WHOLE = [chunk for _, chunk in TOKENS]
EVENTS = ["yield", "data: a\n\n"], ["yield", "data: b\n\n"], ["yield", "data: [DONE]\n\n"]


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Platform, Worker]]:
    with serving(tmp_path_factory.mktemp("worker")) as running:
        yield running


@pytest.fixture
def platform(running: tuple[Platform, Worker]) -> Iterator[Platform]:
    yield running[0]
    running[0].post_status = lambda _: 200


class Failing:
    """Answers the first posts of a kind for a job with these statuses (None cuts the connection), later
    ones well."""

    def __init__(self, kind: str, job_id: str, *statuses: int | None) -> None:
        self.kind, self.job_id = kind, job_id
        self.statuses = list(statuses)
        self.seen: list[Post] = []

    def __call__(self, post: Post) -> int | None:
        if (post.kind, post.job_id) != (self.kind, self.job_id):
            return 200
        self.seen.append(post)
        return self.statuses.pop(0) if self.statuses else 200


@pytest.mark.parametrize("statuses", [(500, 502), (429,), (None, None), (503, None, 408)], ids=str)
def test_a_result_is_sent_again_until_it_is_accepted(
    platform: Platform, statuses: tuple[int | None, ...]
) -> None:
    job_id = f"result-{statuses}"
    failing = platform.post_status = Failing("done", job_id, *statuses)
    platform.offer(native(job_id, *TOKENS))
    assert platform.done(job_id) == {"output": WHOLE}
    assert [post.body for post in failing.seen] == [{"output": WHOLE}] * (len(statuses) + 1)


def test_a_result_that_the_platform_does_not_want_is_let_go(platform: Platform) -> None:
    failing = platform.post_status = Failing("done", "unwanted", 404)
    platform.offer(native("unwanted", *TOKENS))
    platform.wait_for(lambda: failing.seen)
    platform.offer(native("next", *TOKENS))
    assert platform.done("next") == {"output": WHOLE}
    assert len(failing.seen) == 1


def test_a_result_that_is_too_large_becomes_a_clear_error(platform: Platform) -> None:
    platform.post_status = Failing("done", "refused", 413)
    platform.offer(native("refused", *TOKENS))
    assert json.loads(platform.done("refused")["error"])["code"] == 413


def test_a_result_beyond_the_platforms_limit_is_not_even_sent(platform: Platform) -> None:
    platform.offer(native("huge", ["yield", {"text": "x" * 20_000_001}]))
    error = json.loads(platform.done("huge")["error"])
    assert (error["code"], error["type"]) == (413, "OutputTooLargeError")


@pytest.mark.parametrize("status", [429, 503])
def test_a_chunk_that_was_refused_for_now_is_sent_again_in_order(platform: Platform, status: int) -> None:
    job_id = f"busy-{status}"
    platform.post_status = Failing("stream", job_id, status, status)
    platform.offer(native(job_id, *TOKENS))
    assert platform.done(job_id) == {"output": WHOLE}
    assert platform.streamed(job_id) == WHOLE


@pytest.mark.parametrize("status", [None, 500, 502, 400], ids=str)
def test_a_chunk_whose_fate_is_unknown_ends_the_stream_with_an_error_and_leaves_the_result_whole(
    platform: Platform, status: int | None
) -> None:
    job_id = f"cut-{status}"
    failing = platform.post_status = Failing("stream", job_id, 200, status)
    platform.offer(chat(job_id, *EVENTS))
    assert platform.done(job_id) == {"output": [event for _, event in EVENTS]}
    first, last = platform.streamed(job_id)
    assert first == EVENTS[0][1]
    assert "interrupted" in last
    assert last.endswith("data: [DONE]\n\n")
    assert len(failing.seen) == 3, "the chunk, its failure, the error event; nothing after"


@pytest.mark.parametrize("status", [429, 503])
def test_the_last_word_of_a_cut_stream_is_sent_until_it_is_accepted(platform: Platform, status: int) -> None:
    job_id = f"cut-then-{status}"
    platform.post_status = Failing("stream", job_id, 502, status, status)
    platform.offer(chat(job_id, *EVENTS))
    assert platform.done(job_id) == {"output": [event for _, event in EVENTS]}
    (last,) = platform.streamed(job_id)
    assert "interrupted" in last


def test_one_jobs_cut_stream_leaves_others_alone(platform: Platform) -> None:
    platform.post_status = Failing("stream", "cut", None)
    platform.offer(native("cut", *TOKENS), native("whole", *TOKENS))
    assert platform.done("cut") == platform.done("whole") == {"output": WHOLE}
    assert platform.streamed("whole") == WHOLE
    assert platform.streamed("cut")[0]["choices"][0]["finish_reason"] == "error"


def test_a_job_id_stays_in_its_place_in_the_address(platform: Platform) -> None:
    platform.offer(native("../../x?y=1&z #é", *TOKENS))
    assert platform.done("../../x?y=1&z #é") == {"output": WHOLE}


def test_without_a_stream_address_the_result_still_arrives(tmp_path_factory: pytest.TempPathFactory) -> None:
    """As the Hub's test runner has it: no stream and no ping address, and no `?` in the take address."""
    platform = Platform()
    platform.start()
    environment: Callable[[], dict[str, str]] = platform.environment
    kept = {
        name: value.replace("?gpu=x", "") if name.endswith("GET_JOB") else value
        for name, value in environment().items()
        if name not in ("RUNPOD_WEBHOOK_POST_STREAM", "RUNPOD_WEBHOOK_PING")
    }
    platform.environment = lambda: kept  # type: ignore[method-assign]
    with running_worker(platform, tmp_path_factory.mktemp("hub")) as worker:
        platform.offer(native("hub", *TOKENS))
        assert platform.done("hub", 60) == {"output": WHOLE}
        assert platform.streamed("hub") == []
        assert "stream of job" not in worker.log
    platform.stop()
