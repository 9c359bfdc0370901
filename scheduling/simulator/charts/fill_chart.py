"""Lays out the chart of filled clusters: GPUs allocated over the GPUs that were asked for."""

from collections.abc import Sequence

from scheduling.simulator.charts.chart import HEIGHT, WIDTH, Label, Line
from scheduling.simulator.runs.placement import Fill

_LEFT, _TOP, _RIGHT, _BOTTOM = 70.0, 50.0, WIDTH - 20.0, HEIGHT - 50.0


def filling(title: str, fills: Sequence[Fill]) -> tuple[list[Line], list[Label]]:
    """One curve per seed, and the line on which all that was asked for would have got in."""
    lines: list[Line] = []
    words = [Label((WIDTH / 2, 24), title, "middle", 15), Label((_LEFT, _TOP - 8), "GPUs allocated, %")]
    for percent in range(0, 101, 25):
        x, y = _at(percent, percent)
        lines.append(Line([(_LEFT, y), (_RIGHT, y)], "#d4d4d8"))
        words.append(Label((_LEFT - 6, y + 4), f"{percent}", "end"))
        words.append(Label((x, _BOTTOM + 18), f"{percent}", "middle"))
    words.append(Label((_RIGHT, _BOTTOM + 36), "GPUs asked for, % of the cluster", "end"))
    lines.append(Line([_at(0, 0), _at(100, 100)], "#71717a"))
    for fill in fills:
        lines.append(Line([_at(*point) for point in fill.curve], "#1d4ed8", 1.5))
    return lines, words


def _at(arrived: float, allocated: float) -> tuple[float, float]:
    return _LEFT + (_RIGHT - _LEFT) * arrived / 100, _BOTTOM - (_BOTTOM - _TOP) * allocated / 100
