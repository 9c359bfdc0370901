"""Lays out the chart of filled clusters: GPUs allocated over the GPUs requested."""

from collections.abc import Sequence

from scheduling.simulator.charts.chart import HEIGHT, WIDTH, Label, Line
from scheduling.simulator.runs.placement import Fill

_LEFT, _TOP, _RIGHT, _BOTTOM = 70.0, 50.0, WIDTH - 20.0, HEIGHT - 50.0


def filling(title: str, fills: Sequence[Fill]) -> tuple[list[Line], list[Label]]:
    """Lay out one curve per seed, and the line on which all requests would have been placed."""
    lines: list[Line] = []
    labels = [Label((WIDTH / 2, 24), title, "middle", 15), Label((_LEFT, _TOP - 8), "GPUs allocated, %")]
    for percent in range(0, 101, 25):
        x, y = _at(percent, percent)
        lines.append(Line([(_LEFT, y), (_RIGHT, y)], "#d4d4d8"))
        labels.append(Label((_LEFT - 6, y + 4), f"{percent}", "end"))
        labels.append(Label((x, _BOTTOM + 18), f"{percent}", "middle"))
    labels.append(Label((_RIGHT, _BOTTOM + 36), "GPUs asked for, % of the cluster", "end"))
    lines.append(Line([_at(0, 0), _at(100, 100)], "#71717a"))
    for fill in fills:
        lines.append(Line([_at(*point) for point in fill.curve], "#1d4ed8", 1.5))
    return lines, labels


def _at(arrived: float, allocated: float) -> tuple[float, float]:
    return _LEFT + (_RIGHT - _LEFT) * arrived / 100, _BOTTOM - (_BOTTOM - _TOP) * allocated / 100
