"""From single requests to the figures of a run."""

from __future__ import annotations

import dataclasses

import pytest

from worker_vllm.bench.stats import LoadFigures, Percentiles, RequestTimes, median, percentile, summarize


def _times(index: int = 0, **changes: object) -> RequestTimes:
    times = RequestTimes(
        index=index,
        sent=10.0,
        first=10.2,
        last=11.2,
        gaps=(0.4, 0.6),
        chunks=3,
        tokens=11,
        queue_seconds=None,
    )
    return dataclasses.replace(times, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(("percent", "expected"), [(50, 5), (95, 10), (99, 10), (0, 1), (10, 1), (11, 2)])
def test_a_percentile_is_a_measured_value(percent: float, expected: int) -> None:
    assert percentile(list(range(1, 11)), percent) == expected


def test_percentiles_of_nothing_are_unknown() -> None:
    assert Percentiles.of([]) == Percentiles(None, None, None, None)


def test_percentiles_take_values_in_any_order() -> None:
    assert Percentiles.of([3.0, 1.0, 2.0]) == Percentiles(2.0, 3.0, 3.0, 3.0)


def test_throughput_counts_from_the_first_request_to_the_last_text() -> None:
    figures = summarize([_times(0), _times(1, sent=10.5, last=12.0, tokens=9)], streamed=True)
    assert figures.seconds == pytest.approx(2.0)
    assert figures.tokens_per_second == pytest.approx(10.0)


def test_ttft_counts_from_the_sending_of_each_request() -> None:
    figures = summarize([_times(0), _times(1, sent=10.1, first=10.2)], streamed=True)
    assert figures.ttft.largest == pytest.approx(0.2)
    assert figures.ttft.p50 == pytest.approx(0.1)


def test_time_per_token_leaves_the_first_token_out() -> None:
    assert summarize([_times()], streamed=True).per_token.p50 == pytest.approx(0.1)


def test_a_plain_answer_has_no_first_token() -> None:
    figures = summarize([_times(first=None, gaps=(), chunks=1)], streamed=False)
    assert figures.ttft.p50 is None and figures.per_token.p50 is None
    assert figures.total.p50 == pytest.approx(1.2)


def test_a_failed_request_counts_as_failed_only() -> None:
    figures = summarize([_times(), _times(1, error="HTTP 500", tokens=1000, last=99.0)], streamed=True)
    assert (figures.requests, figures.failed, figures.error) == (1, 1, "HTTP 500")
    assert figures.tokens == 11 and figures.seconds == pytest.approx(1.2)


def test_a_run_in_which_all_failed_has_no_speed() -> None:
    figures = summarize([_times(error="refused")], streamed=True)
    assert figures.tokens_per_second == 0.0 and figures.chunks_per_request == 0.0


def test_figures_survive_json() -> None:
    figures = summarize([_times(queue_seconds=0.5)], streamed=True)
    assert LoadFigures.from_json(dataclasses.asdict(figures)) == figures


def test_request_times_survive_json() -> None:
    assert RequestTimes.from_json(_times().to_json()) == _times()


@pytest.mark.parametrize(
    ("values", "expected"), [([], None), ([3.0], 3.0), ([4.0, 1.0], 2.5), ([9, 1, 5], 5)]
)
def test_median(values: list[float], expected: float | None) -> None:
    assert median(values) == expected
