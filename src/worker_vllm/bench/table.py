"""The report as text, for a terminal or a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from worker_vllm.bench.report import Report, Run, tokens_per_second
from worker_vllm.bench.stats import median
from worker_vllm.bench.usage import Usage
from worker_vllm.bench.workload import Workload

Figure = Callable[[Run], float | None]


def _scaled(figure: Figure, factor: float) -> Figure:
    def scaled(run: Run) -> float | None:
        value = figure(run)
        return None if value is None else value * factor

    return scaled


def _of_usage(figure: Callable[[Usage], float]) -> Figure:
    def of_usage(run: Run) -> float | None:
        return None if run.usage is None else figure(run.usage)

    return of_usage


_Columns = tuple[tuple[str, Figure, str], ...]
_SPEED: _Columns = (
    ("ttft p50 ms", _scaled(lambda run: run.load.ttft.p50, 1e3), ".0f"),
    ("p95", _scaled(lambda run: run.load.ttft.p95, 1e3), ".0f"),
    ("p99", _scaled(lambda run: run.load.ttft.p99, 1e3), ".0f"),
    ("token p50 ms", _scaled(lambda run: run.load.per_token.p50, 1e3), ".2f"),
    ("p95", _scaled(lambda run: run.load.per_token.p95, 1e3), ".2f"),
    ("p99", _scaled(lambda run: run.load.per_token.p99, 1e3), ".2f"),
    ("gap p50 ms", _scaled(lambda run: run.load.gap.p50, 1e3), ".1f"),
    ("p95", _scaled(lambda run: run.load.gap.p95, 1e3), ".1f"),
    ("p99", _scaled(lambda run: run.load.gap.p99, 1e3), ".1f"),
)
_COST: _Columns = (
    ("total p50 s", lambda run: run.load.total.p50, ".2f"),
    ("queue p50 ms", _scaled(lambda run: run.load.queue.p50, 1e3), ".0f"),
    ("max", _scaled(lambda run: run.load.queue.largest, 1e3), ".0f"),
    ("posts", lambda run: run.load.chunks_per_request, ".1f"),
    ("cpu us/token", lambda run: run.frontend_microseconds_per_token, ".1f"),
    ("front MB", _of_usage(lambda usage: usage.frontend_peak_bytes * 1e-6), ".0f"),
    (
        "grown",
        _of_usage(lambda usage: (usage.frontend_end_bytes - usage.frontend_start_bytes) * 1e-6),
        "+.0f",
    ),
    ("tree MB", _of_usage(lambda usage: usage.tree_peak_bytes * 1e-6), ".0f"),
    ("client", lambda run: run.client_busy, ".0%"),
    ("platform", _of_usage(lambda usage: usage.platform_busy), ".0%"),
)

_LEGEND = """\
Medians over the rounds; a ratio is the median of each round's own. tok/s: tokens of all answers over the run.
ttft: from sending to the first token. token: a request's time after its first token, per token. gap: between
two arrivals of text; several tokens may come together. total: from sending to the last token. queue: in the
platform's queue, where it says so. posts: HTTP chunks of an answer, behind the platform the worker's posts.
cpu: front end (SDK, tokenizer, HTTP; not the engine), per token. front, tree: peak resident memory of front
end, and with engine. client, platform: how busy the measuring side was; near 100% it was the limit."""


def text(report: Report) -> str:
    """The whole report as text."""
    parts = [_heading(report)]
    parts += [_workload_table(report, workload) for workload in report.workloads]
    if report.starts:
        parts.append(_start_table(report))
    if warnings := report.warnings():
        parts.append("\n".join(f"warning: {warning}" for warning in warnings))
    parts.append(_LEGEND)
    return "\n\n".join(parts) + "\n"


def _heading(report: Report) -> str:
    settings = " ".join(f"{name}={_shown(value)}" for name, value in report.settings.items())
    versions = " ".join(f"{name} {version}" for name, version in report.versions.items())
    machine = ", ".join(f"{name} {value}" for name, value in report.machine.items())
    return f"{versions}\n{machine}\n{settings}"


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ",".join(f"{name}:{one}" for name, one in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ",".join(map(str, value)) or "-"
    return str(value)


def _workload_table(report: Report, workload: Workload) -> str:
    speeds = [["target", "tok/s", f"of {report.baseline}", *(name for name, _, _ in _SPEED)]]
    costs = [["target", *(name for name, _, _ in _COST)]]
    for target in report.targets:
        if not report.runs_of(target, workload.label):
            continue
        speed = report.middle(target, workload.label, tokens_per_second)
        ratio = report.ratio(target, report.baseline, workload.label, tokens_per_second)
        speeds.append(
            [target, number(speed, ".0f"), number(ratio, ".2f"), *_cells(report, target, workload, _SPEED)]
        )
        costs.append([target, *_cells(report, target, workload, _COST)])
    arrivals = "in one burst" if workload.rate is None else f"at {workload.rate:g} per second"
    title = (
        f"{workload.route}, {'streamed' if workload.streamed else 'plain'}: {workload.requests} requests "
        f"{arrivals}, {workload.concurrency} at once, {workload.prompt_tokens} tokens in, "
        f"{workload.max_tokens} out"
    )
    return "\n".join((title, align(speeds), align(costs)))


def _cells(report: Report, target: str, workload: Workload, columns: _Columns) -> list[str]:
    return [number(report.middle(target, workload.label, figure), form) for _, figure, form in columns]


def _start_table(report: Report) -> str:
    base = median(start.first_token_seconds for start in report.starts if start.target == report.baseline)
    rows = [["target", "ready s", "first token s", f"of {report.baseline}", "phases"]]
    rows += [
        [
            start.target,
            number(start.ready_seconds, ".1f"),
            number(start.first_token_seconds, ".1f"),
            number(start.first_token_seconds / base if base else None, ".2f"),
            ", ".join(f"{name} {seconds:.1f}" for name, seconds in start.phases) or "-",
        ]
        for start in report.starts
    ]
    title = "from process start to first token (phases as the target's log tells them; some overlap)"
    return title + "\n" + align(rows, left=(0, 4))


def number(value: float | None, form: str) -> str:
    """A figure as a cell, "-" for none."""
    return "-" if value is None else format(value, form)


def align(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Rows of cells as lines of columns, right-aligned except those in `left`."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(width) if index in left else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
