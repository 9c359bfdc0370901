"""Generate the past arrivals of the demo's endpoint that is kept warm, as the demo's own requests would have left them.

The gaps are random; whether an arrival met a warm replica follows from the rules of pre-warming, applied day by day to
the arrivals before it."""

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from django.db import transaction

from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import columns, execute, rows
from serving.prewarming.gaps import Arrival, Chances
from serving.prewarming.keeping import chosen_worth, gap_score

DAYS = 16
GAP_SECONDS = (30.0, 270.0)
IDLE_SECONDS = 20
_DAY_SECONDS = 86_400.0
_STORE = """
    INSERT INTO serving_arrival (endpoint_id, at, gap_seconds, was_warm, gpus, kept_seconds, idle_seconds)
    SELECT %s, to_timestamp(a.at), a.gap, a.was_warm, 0, a.kept, %s
      FROM unnest(%s::float8[], %s::float8[], %s::bool[], %s::float8[]) AS a (at, gap, was_warm, kept)
"""
_JUDGE_NOW = "UPDATE serving_prewarming SET judged_at = NULL WHERE endpoint_id = %s"


class _Past(NamedTuple):
    at: float
    gap_seconds: float
    was_warm: bool
    kept_seconds: float


def store(endpoint_id: int, now: float, chance: random.Random) -> None:
    """Store the generated arrivals of an endpoint up to `now`, unless it has any."""
    if rows("SELECT EXISTS (SELECT 1 FROM serving_arrival WHERE endpoint_id = %s)", [endpoint_id])[0][0]:
        return
    past = list(generate(now, chance))
    with transaction.atomic():
        execute("SELECT pg_advisory_xact_lock(%s)", [Lock.REPLICAS])  # so that the next round judges anew
        execute(_STORE, [endpoint_id, IDLE_SECONDS, *columns(past, len(_Past._fields))])
        execute(_JUDGE_NOW, [endpoint_id])


def generate(now: float, chance: random.Random) -> Iterator[_Past]:
    """Yield arrivals of the last DAYS, with what pre-warming would have done."""
    arrivals: list[Arrival] = []
    for day in range(DAYS):
        start = now - (DAYS - day) * _DAY_SECONDS
        worth, chances = chosen_worth(arrivals, start, float("inf")), Chances(arrivals, start)
        new = list(_arrivals(start, chance))
        arrivals += new
        for arrival in new:
            if worth is None:  # a replica stays for the idle time alone
                yield _Past(*arrival, arrival.gap_seconds <= IDLE_SECONDS, 0.0)
            else:
                score = gap_score(chances, worth, arrival)
                yield _Past(*arrival, bool(score.hits), score.wasted_seconds)


def _arrivals(start: float, chance: random.Random) -> Sequence[Arrival]:
    """Return the arrivals of a day."""
    at, new = start, []
    while (gap := chance.uniform(*GAP_SECONDS)) and (at := at + gap) < start + _DAY_SECONDS:
        new.append(Arrival(at, gap))
    return new
