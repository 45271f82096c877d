"""The report as one SVG picture: horizontal bars, a panel per measure. No library: it is a page of
rectangles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from xml.sax.saxutils import escape

from worker_vllm.bench.report import Report, tokens_per_second, ttft_p50
from worker_vllm.bench.stats import median

_WIDTH, _LABELS, _VALUES = 900, 250, 110
_BAR, _BAR_GAP, _GROUP_GAP, _PANEL_GAP = 16, 3, 12, 26
_COLOURS = ("#3b6ea5", "#c8553d", "#588157", "#8d6a9f", "#b08900", "#5c6b73")


@dataclass(frozen=True)
class Bar:
    """One bar: whose it is, its value, and the value as text."""

    target: str
    value: float
    text: str


@dataclass(frozen=True)
class Panel:
    """One measure: its title, and groups of bars, each group with a label."""

    title: str
    groups: tuple[tuple[str, tuple[Bar, ...]], ...]


def svg(report: Report) -> str:
    """The picture as SVG text."""
    colours = {target: _COLOURS[index % len(_COLOURS)] for index, target in enumerate(report.targets)}
    parts: list[str] = []
    y = _legend(parts, report.targets, colours)
    for panel in panels(report):
        y = _draw(parts, panel, colours, y)
    body = "\n".join(parts)
    style = 'font-family="sans-serif" font-size="13" fill="#222"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" width="{_WIDTH}" '
        f'height="{y}" {style}>\n<rect width="100%" height="100%" fill="#fff"/>\n'
        f"{body}\n</svg>\n"
    )


def panels(report: Report) -> list[Panel]:
    """The panels that the report has figures for."""
    speed, first = [], []
    for workload in report.workloads:
        speeds, firsts = [], []
        for target in report.targets:
            value = report.middle(target, workload.label, tokens_per_second)
            if value is not None:
                speeds.append(Bar(target, value, f"{value:,.0f}"))
            seconds = report.middle(target, workload.label, ttft_p50)
            if seconds is not None:
                firsts.append(Bar(target, seconds, f"{seconds * 1e3:,.0f} ms"))
        speed.append((workload.label, tuple(speeds)))
        first.append((workload.label, tuple(firsts)))
    starts = []
    for target in report.targets:
        middle = median(start.first_token_seconds for start in report.starts if start.target == target)
        if middle is not None:
            starts.append(Bar(target, middle, f"{middle:.1f} s"))
    found = [
        Panel("Tokens per second, all requests together (more is better)", _filled(speed)),
        Panel("Time to first token, median (less is better)", _filled(first)),
        Panel("Process start to first token (less is better)", _filled([("start", tuple(starts))])),
    ]
    return [panel for panel in found if panel.groups]


def _filled(groups: Sequence[tuple[str, tuple[Bar, ...]]]) -> tuple[tuple[str, tuple[Bar, ...]], ...]:
    return tuple((label, bars) for label, bars in groups if bars)


def _legend(parts: list[str], targets: Sequence[str], colours: dict[str, str]) -> int:
    x = 12
    for target in targets:
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" fill="{colours[target]}"/>')
        parts.append(f'<text x="{x + 17}" y="23">{escape(target)}</text>')
        x += 34 + 8 * len(target)
    return 40


def _draw(parts: list[str], panel: Panel, colours: dict[str, str], y: int) -> int:
    """Draw one panel from height `y` on; the height below it is returned."""
    largest = max(bar.value for _, bars in panel.groups for bar in bars)
    scale = (_WIDTH - _LABELS - _VALUES) / largest if largest > 0 else 0.0
    parts.append(f'<text x="12" y="{y + 14}" font-weight="bold">{escape(panel.title)}</text>')
    y += 24
    for label, bars in panel.groups:
        parts.append(f'<text x="{_LABELS - 8}" y="{y + _BAR - 3}" text-anchor="end">{escape(label)}</text>')
        for bar in bars:
            width = max(1.0, bar.value * scale)
            place = f'x="{_LABELS}" y="{y}" width="{width:.1f}" height="{_BAR}"'
            parts.append(f'<rect {place} fill="{colours[bar.target]}"/>')
            parts.append(f'<text x="{_LABELS + width + 6:.1f}" y="{y + _BAR - 3}">{escape(bar.text)}</text>')
            y += _BAR + _BAR_GAP
        y += _GROUP_GAP
    return y + _PANEL_GAP - _GROUP_GAP
