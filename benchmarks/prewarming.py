"""Compares pre-warming with a fixed keep-alive of five minutes over a generated week that follows five others.

Three endpoints with regular work (every half hour, hourly in working hours, nightly; with jitter and holes) and random
requests, and one with random requests alone. Waste is the part of all warm GPU-hours without a request. "Never worse"
holds for the sum of the endpoints in each generated week. Exits 1 if a goal is missed.
"""

import argparse
import json
import random
from collections.abc import Iterator

from serving.prewarming.gaps import MIN_GAP_SECONDS, WEEK_SECONDS, WEEKS, Arrival, Chances
from serving.prewarming.keeping import Score, chosen_worth, fixed_score, score

GOAL_AVOIDED, GOAL_WASTE = 0.6, 0.1
START = 2_000 * WEEK_SECONDS
SERVED_SECONDS = {"half-hourly": 480.0, "hourly": 1200.0, "nightly": 3600.0, "random": 600.0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="the last line is JSON")
    arguments = parser.parse_args()
    rows = {name: [_week(name, seed) for seed in range(arguments.seeds)] for name in SERVED_SECONDS}
    total = _Sum([entry for entries in rows.values() for entry in entries])
    for name, entries in rows.items():
        print(f"{name:<8} {_Sum(entries).text()}")
    print(f"{'all':<8} {total.text()}")
    figures = total.figures() | {
        "never_worse": all(
            mine.misses <= fixed.misses and mine.wasted_seconds <= fixed.wasted_seconds
            for seed in range(arguments.seeds)
            for mine, fixed, _ in [_Sum([entries[seed] for entries in rows.values()]).scores()]
        )
    }
    if arguments.json:
        print(json.dumps(figures))
    is_met = (
        figures["avoided_percent"] >= 100 * GOAL_AVOIDED
        and figures["waste_percent"] <= 100 * GOAL_WASTE
        and figures["never_worse"]
    )
    raise SystemExit(0 if is_met else 1)


class _Sum:
    """The sums of some weeks."""

    def __init__(self, weeks: list[tuple[Score, Score, float]]) -> None:
        self.weeks = weeks

    def scores(self) -> tuple[Score, Score, float]:
        mine, fixed = _added([week[0] for week in self.weeks]), _added([week[1] for week in self.weeks])
        return mine, fixed, sum(week[2] for week in self.weeks)

    def figures(self) -> dict[str, float]:
        mine, fixed, served = self.scores()
        return {
            "avoided_percent": round(100 * mine.hits / max(mine.hits + mine.misses, 1), 1),
            "waste_percent": round(100 * mine.wasted_seconds / (served + mine.wasted_seconds), 1),
            "fixed_avoided_percent": round(100 * fixed.hits / max(fixed.hits + fixed.misses, 1), 1),
            "fixed_waste_percent": round(100 * fixed.wasted_seconds / (served + fixed.wasted_seconds), 1),
        }

    def text(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self.figures().items())


def _added(scores: list[Score]) -> Score:
    hits, misses = sum(entry.hits for entry in scores), sum(entry.misses for entry in scores)
    return Score(hits, misses, sum(entry.wasted_seconds for entry in scores))


def _week(name: str, seed: int) -> tuple[Score, Score, float]:
    """Return the scores of pre-warming and of the fixed keep-alive for the last week, and the seconds with requests."""
    times = sorted(_requests(name, random.Random(f"{name} {seed}")))
    arrivals, end = [], START
    for at in times:
        if at - end >= MIN_GAP_SECONDS:
            arrivals.append(Arrival(at, at - end))
        end = max(end, at + SERVED_SECONDS[name])
    now = START + WEEKS * WEEK_SECONDS
    history = [arrival for arrival in arrivals if arrival.at <= now]
    last = [arrival for arrival in arrivals if arrival.at > now]
    served = SERVED_SECONDS[name] * len([arrival for arrival in history if arrival.at > now - WEEK_SECONDS])
    fixed, worth = fixed_score(last), chosen_worth(history, now, served * GOAL_WASTE / (1 - GOAL_WASTE))
    mine = fixed if worth is None else score(Chances(history, now), worth, last)
    return mine, fixed, len(last) * SERVED_SECONDS[name]


def _requests(name: str, rng: random.Random) -> Iterator[float]:
    """Yield when requests come, in the weeks of the history and the one after it."""
    for day in range(7 * (WEEKS + 1)):
        midnight = START + day * 86_400
        is_workday = day % 7 < 5
        if name == "half-hourly":
            yield from (midnight + half * 1800 + rng.gauss(420, 20) for half in range(48) if rng.random() < 0.98)
        if name == "hourly" and is_workday:
            yield from (midnight + hour * 3600 + rng.gauss(300, 30) for hour in range(8, 19) if rng.random() < 0.97)
        if name == "nightly":
            yield midnight + 2 * 3600 + rng.gauss(0, 60)
        at = midnight
        while (at := at + rng.expovariate(1.5 / 86_400)) < midnight + 86_400:
            yield at


if __name__ == "__main__":
    main()
