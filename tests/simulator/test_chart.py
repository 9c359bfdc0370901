"""The chart shows the average of waiting jobs and used GPUs for each step of time."""

import pytest

from scheduling.simulator.charts.chart import HEIGHT, WIDTH, Line, chart
from scheduling.simulator.runs.trace_replay import Run

DAY = 86400.0


def curves(*parts: tuple[list[tuple[float, int, int]], int]) -> tuple[list[float], list[float], list[str]]:
    """Jobs waiting and per cent in use as the lines have them, from 0 to 1 of the panel; and the words."""
    lines, labels = chart("title", [(Run([], timeline), gpus) for timeline, gpus in parts])
    texts = [line for line in lines if line.width > 1]
    axes = [line for line in lines if line.width == 1 and line.points[0][0] < line.points[1][0]]
    heights = [_heights(curve, axes[5 * number], axes[5 * number + 4]) for number, curve in enumerate(texts)]
    return heights[0], heights[1], [word.text for word in labels]


def _heights(curve: Line, bottom: Line, top: Line) -> list[float]:
    low, high = bottom.points[0][1], top.points[0][1]
    return [(low - y) / (low - high) for _, y in curve.points]


def test_a_step_shows_its_average() -> None:
    waiting, used, labels = curves(([(0.0, 8, 4), (DAY, 0, 8), (2 * DAY, 0, 0)], 8))
    assert waiting[0] == pytest.approx(1) and waiting[-1] == pytest.approx(0)
    assert used[0] == pytest.approx(0.5) and used[-1] == pytest.approx(1)
    assert {"8", "100", "2 days", "title"} <= set(labels)


def test_short_peaks_count_by_their_duration() -> None:
    second = 2 * DAY / 800
    waiting, _, _ = curves(([(0.0, 0, 0), (DAY, 4, 0), (DAY + second / 4, 0, 0), (2 * DAY, 0, 0)], 8))
    assert max(waiting) == pytest.approx(0.25)
    assert sum(height > 0 for height in waiting) == 1


def test_clusters_side_by_side_are_added_up() -> None:
    one = [(0.0, 2, 8), (DAY, 0, 0)]
    waiting, used, _ = curves((one, 8), ([(0.0, 2, 0), (DAY, 0, 0)], 8))
    assert waiting[0] == pytest.approx(1) and used[0] == pytest.approx(0.5)


def test_chart_draws_inside_its_panels_and_accepts_a_single_moment() -> None:
    lines, labels = chart("t", [(Run([], [(5.0, 3, 8)]), 8)])
    for x, y in [*[point for line in lines for point in line.points], *[word.at for word in labels]]:
        assert 0 <= x <= WIDTH and 0 <= y <= HEIGHT
