"""Advises how much memory to request, from the peaks of earlier runs of the same command."""

from collections.abc import Sequence
from math import ceil, exp
from typing import NamedTuple

from scheduling.prediction.ends import End
from scheduling.prediction.keys import JobKind, keys_of

# A run that ran out of memory needed more than it had: at least by this factor.
OUT_OF_MEMORY_FACTOR = 1.5
MARGIN = 1.1
ROUND_MB = 256
MIN_RUNS = 2


class MemoryNeed(NamedTuple):
    """`peak_mb`: the highest peak of `runs` runs; `advised_mb`: with a margin, and more than what was too little.
    `ran_out`: how many of them ran out of memory."""

    peak_mb: int
    advised_mb: int
    runs: int
    ran_out: int


def memory_keys(kind: JobKind, resource: str) -> tuple[str, str]:
    """Return the keys of the peaks of `gpu` or `host` memory: of one user's runs of one command, narrow to wide."""
    keys = keys_of(kind)
    return f"{resource}/{keys[0]}", f"{resource}/{keys[1]}"


def need_of(ends: Sequence[End]) -> MemoryNeed | None:
    """Return the need of the next run from the peaks in MiB (as logarithms); None with too few, unless one of them
    ran out of memory. A peak that is not observed is that of a run that ran out of memory."""
    if len(ends) < MIN_RUNS and all(end.is_observed for end in ends):
        return None
    peak = max(exp(end.value) for end in ends)
    floor = max(exp(end.value) * (1.0 if end.is_observed else OUT_OF_MEMORY_FACTOR) for end in ends)
    advised = ROUND_MB * ceil(floor * MARGIN / ROUND_MB)
    return MemoryNeed(round(peak), advised, len(ends), sum(not end.is_observed for end in ends))
