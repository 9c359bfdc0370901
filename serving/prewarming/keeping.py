"""Decides whether a replica stays or starts before a request, and what an avoided cold start is worth. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from serving.prewarming.gaps import MIN_GAP_SECONDS, STEP_SECONDS, WEEK_SECONDS, Arrival, Chances

# Warm seconds without a request that one avoided cold start may cost, from generous to never.
WORTHS = (3600.0, 2400.0, 1800.0, 1200.0, 900.0, 600.0, 420.0, 300.0, 180.0, 120.0, 60.0)
# A fixed keep-alive, which pre-warming must never be worse than.
FIXED_SECONDS = 300.0
# With fewer arrivals, in the weeks before the last one and in that, nothing is known.
MIN_ARRIVALS_BEFORE, MIN_ARRIVALS = 10, 3
# The warm seconds that a cold start is compared with when rules are compared.
_COLD_START_PRICE = 1800.0
# The part of a tenant's GPU-hours of the last week that its kept replicas may waste.
WASTE_SHARE = 0.05


class Score(NamedTuple):
    """The outcome of a rule over some arrivals. `wasted_seconds`: warm and idle, in gaps."""

    hits: int
    misses: int
    wasted_seconds: float


def is_worth_it(chance: float, worth: float) -> bool:
    """Return whether the expected gain of being warm for a step, at this chance of an arrival, exceeds the step."""
    return chance * worth >= STEP_SECONDS


def chance_of_use(
    chances: Chances, idle_since: float, now: float, *, is_warm: bool, cold_start_seconds: float
) -> float:
    """Return the chance of an arrival in the next step, which decides whether a replica should be warm. A replica that
    is not warm must start ahead of the time at which it is needed."""
    chance = chances.next_step(idle_since, now)
    return chance if is_warm else max(chance, chances.next_step(idle_since, now + cold_start_seconds))


def gap_score(chances: Chances, worth: float, arrival: Arrival) -> Score:
    """Return how one gap goes: it is walked step by step."""
    idle_since, steps = arrival.at - arrival.gap_seconds, int(arrival.gap_seconds // STEP_SECONDS)
    starts = [idle_since + n * STEP_SECONDS for n in range(steps + 1)]
    warm = [is_worth_it(chances.next_step(idle_since, start), worth) for start in starts]
    wasted = sum(warm[:-1]) * STEP_SECONDS + warm[-1] * (arrival.gap_seconds - steps * STEP_SECONDS)
    return Score(int(warm[-1]), int(not warm[-1]), max(wasted, MIN_GAP_SECONDS))


def fixed_score(arrivals: Sequence[Arrival]) -> Score:
    """Return the outcome of a fixed keep-alive."""
    hits = sum(arrival.gap_seconds <= FIXED_SECONDS for arrival in arrivals)
    wasted = sum(min(arrival.gap_seconds, FIXED_SECONDS) for arrival in arrivals)
    return Score(hits, len(arrivals) - hits, wasted)


def score(chances: Chances, worth: float, arrivals: Sequence[Arrival]) -> Score:
    parts = [gap_score(chances, worth, arrival) for arrival in arrivals]
    return Score(
        sum(part.hits for part in parts), sum(part.misses for part in parts), sum(part.wasted_seconds for part in parts)
    )


def chosen_worth(arrivals: Sequence[Arrival], now: float, budget_seconds: float) -> float | None:
    """Return the worth that would have been the best for the last week, judged by the weeks before it; None: none was
    better than a fixed keep-alive, which stays.

    It must be no worse than that on both axes, and waste no more than this budget of seconds."""
    before = [arrival for arrival in arrivals if arrival.at <= now - WEEK_SECONDS]
    last_week = [arrival for arrival in arrivals if now - WEEK_SECONDS < arrival.at <= now]
    if len(before) < MIN_ARRIVALS_BEFORE or len(last_week) < MIN_ARRIVALS:
        return None
    chances, fixed = Chances(before, now - WEEK_SECONDS), fixed_score(last_week)
    limit = min(fixed.wasted_seconds, budget_seconds)
    best: tuple[float, float] | None = None
    for worth in WORTHS:
        result = score(chances, worth, last_week)
        if result.wasted_seconds <= limit and result.misses <= fixed.misses:
            cost = result.misses * _COLD_START_PRICE + result.wasted_seconds
            best = (cost, worth) if best is None or cost < best[0] else best
    return None if best is None else best[1]


def is_within_budget(wasted_gpu_seconds: float, used_gpu_seconds: float) -> bool:
    """Return whether a tenant's kept replicas have wasted no more than their share of its GPU-hours of a week."""
    return wasted_gpu_seconds <= WASTE_SHARE * used_gpu_seconds
