"""Lays out the chart of a replay, jobs waiting and GPUs in use over time, as lines and labels with positions."""

from collections.abc import Callable, Sequence
from math import floor, log10
from typing import NamedTuple

from scheduling.simulator.runs.trace_replay import Run

WIDTH, HEIGHT = 960, 520
_LEFT, _RIGHT, _TOPS, _PANEL = 70, 20, (40, 285), 190
_BUCKETS = 800

Point = tuple[float, float]


class Line(NamedTuple):
    points: list[Point]
    colour: str
    width: float = 1.0


class Label(NamedTuple):
    """A text. `anchor`: where `at` is in the text: start, middle or end."""

    at: Point
    text: str
    anchor: str = "start"
    size: int = 12


class Panel(NamedTuple):
    """A curve: `values` in the middle of equal steps of time, from 0 to `maximum`."""

    title: str
    colour: str
    values: list[float]
    maximum: float


def chart(title: str, parts: Sequence[tuple[Run, int]]) -> tuple[list[Line], list[Label]]:
    """Lay out replays side by side, each with its number of GPUs, on a canvas of WIDTH x HEIGHT, the origin at top
    left."""
    timelines = [(run.timeline, gpus) for run, gpus in parts]
    start = min(timeline[0][0] for timeline, _ in timelines)
    end = max(max(timeline[-1][0] for timeline, _ in timelines), start + 1.0)
    waiting = _averages(timelines, start, end, lambda _, jobs, __: jobs)
    used = _averages(timelines, start, end, lambda _, __, in_use: in_use)
    gpus = sum(count for _, count in timelines)
    panels = (
        Panel("jobs waiting", "#b45309", waiting, _ceiling(max(waiting))),
        Panel("GPUs in use, %", "#1d4ed8", [100.0 * value / gpus for value in used], 100.0),
    )
    lines: list[Line] = []
    labels = [Label((WIDTH / 2, 20), title, "middle", 15)]
    for top, panel in zip(_TOPS, panels, strict=True):
        _draw(panel, top, (end - start) / 86400.0, lines, labels)
    return lines, labels


def _draw(panel: Panel, top: float, days: float, lines: list[Line], labels: list[Label]) -> None:
    bottom, right = top + _PANEL, WIDTH - _RIGHT
    labels.append(Label((_LEFT, top - 6), panel.title))
    for part in range(5):
        y = bottom - _PANEL * part / 4
        lines.append(Line([(_LEFT, y), (right, y)], "#d4d4d8"))
        labels.append(Label((_LEFT - 6, y + 4), f"{panel.maximum * part / 4:g}", "end"))
    for part in range(9):
        x = _LEFT + (right - _LEFT) * part / 8
        lines.append(Line([(x, bottom), (x, bottom + 4)], "#71717a"))
        unit = " days" if part == 8 else ""
        labels.append(Label((x, bottom + 18), f"{days * part / 8:.3g}{unit}", "end" if part == 8 else "middle"))
    step = (right - _LEFT) / len(panel.values)
    curve = [
        (_LEFT + (number + 0.5) * step, bottom - _PANEL * min(value / panel.maximum, 1.0))
        for number, value in enumerate(panel.values)
    ]
    lines.append(Line(curve, panel.colour, 1.5))


def _averages(
    timelines: Sequence[tuple[list[tuple[float, int, int]], int]],
    start: float,
    end: float,
    of: Callable[[float, int, int], int],
) -> list[float]:
    """Return the average over time, in equal steps, of a value that holds from one event to the next, all replays
    added."""
    width = (end - start) / _BUCKETS
    areas = [0.0] * _BUCKETS
    for timeline, _ in timelines:
        for event, following in zip(timeline, [*timeline[1:], (end, 0, 0)], strict=True):
            _fill(areas, (event[0] - start) / width, (following[0] - start) / width, of(*event))
    return areas


def _fill(areas: list[float], first: float, last: float, value: float) -> None:
    """Add a value that holds from `first` to `last`, in steps."""
    for number in range(min(floor(first), _BUCKETS - 1), min(floor(last), _BUCKETS - 1) + 1):
        areas[number] += value * max(min(last, number + 1) - max(first, number), 0.0)


def _ceiling(value: float) -> float:
    """Return the next 1, 2, 4, 8 or 10 times a power of ten: its quarters read well."""
    if value <= 4:
        return 4.0
    power = 10.0 ** floor(log10(value))
    return next(step * power for step in (1.0, 2.0, 4.0, 8.0, 10.0) if value <= step * power)
