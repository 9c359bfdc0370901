"""Dependencies of jobs: other jobs, and the required kind of their end."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter

import msgspec

from gpusched.protocol.states import FINAL, JobState

# Of one job; for more, let intermediate jobs wait for them.
MAX_DEPENDENCIES = 1000


class After(StrEnum):
    """The kind of a dependency. `after_fail`: ended in any way other than completed, including cancelled or preempted
    for good."""

    OK = "after_ok"
    ANY = "after_any"
    FAIL = "after_fail"


class Dependency(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`job`: its id, or the `ref` of a job of the same bulk."""

    job: int | str
    kind: After = After.OK


# The word in the sentence "it was to start only after that job …".
ENDED_AS: Mapping[After, str] = {After.OK: "completed", After.ANY: "ended", After.FAIL: "failed"}


def dependency_of(entry: int | str | Dependency) -> Dependency:
    """Parse an entry of `depends_on`: `41`, `"41"`, `"after_any:41"`, a `ref`, or a full Dependency. An unknown kind is
    part of a name."""
    if isinstance(entry, Dependency):
        return entry
    if isinstance(entry, int):
        return Dependency(job=entry)
    kind, _, name = entry.rpartition(":")
    if kind not in list(After):
        kind, name = After.OK, entry
    return Dependency(job=int(name) if name.isdecimal() and len(name) <= 18 else name, kind=After(kind))


def is_met(kind: str, state: str) -> bool | None:
    """Return True if a job in `state` meets `kind`, False if it cannot; None if it may still end either way."""
    if state not in FINAL:
        return None
    return kind == After.ANY or (kind == After.OK) == (state == JobState.COMPLETED)


def cycle_in(waits_for: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of a cycle, with its first name again at the end; empty if there is none. A name may wait for
    names that are not keys."""
    try:
        TopologicalSorter(waits_for).prepare()
    except CycleError as error:
        return list(reversed(error.args[1]))
    return []
