"""What a job may wait for: other jobs, and how they are to end."""

from collections.abc import Mapping, Sequence
from enum import StrEnum

import msgspec

from gpusched.protocol.states import FINAL, JobState

# Of one job; whoever needs more lets jobs in between wait for them.
MAX_DEPENDENCIES = 1000


class After(StrEnum):
    """`after_fail`: ended in any other way than completed, so also cancelled or preempted for good."""

    OK = "after_ok"
    ANY = "after_any"
    FAIL = "after_fail"


class Dependency(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`job`: its id, or the `ref` of a job of the same bulk."""

    job: int | str
    kind: After = After.OK


# The same as a word of the sentence: it was to start only after that job …
ENDED_AS: Mapping[After, str] = {After.OK: "completed", After.ANY: "ended", After.FAIL: "failed"}


def dependency_of(given: int | str | Dependency) -> Dependency:
    """One of `depends_on`: `41`, `"41"`, `"after_any:41"`, a `ref`, or already in full. Unknown kinds are names."""
    if isinstance(given, Dependency):
        return given
    if isinstance(given, int):
        return Dependency(job=given)
    kind, _, name = given.rpartition(":")
    if kind not in list(After):
        kind, name = After.OK, given
    return Dependency(job=int(name) if name.isdecimal() and len(name) <= 18 else name, kind=After(kind))


def is_met(kind: str, state: str) -> bool | None:
    """Whether a job in `state` is what `kind` waits for; None: not yet decided, it may still end either way."""
    if state not in FINAL:
        return None
    return kind == After.ANY or (kind == After.OK) == (state == JobState.COMPLETED)


def cycle_in(waits_for: Mapping[str, Sequence[str]]) -> list[str]:
    """The names of one cycle, its first name again at its end; empty if there is none. A name may wait for names that
    are no key."""
    done: set[str] = set()
    for start in waits_for:
        path: dict[str, int] = {}  # ordered: the way from `start` to here
        stack = [(start, iter(waits_for[start]))] if start not in done else []
        path.update({name: 0 for name, _ in stack})
        while stack:
            name, following = stack[-1]
            for other in following:
                if other in path:
                    names = list(path)
                    return [*names[names.index(other) :], other]
                if other in waits_for and other not in done:
                    path[other] = 0
                    stack.append((other, iter(waits_for[other])))
                    break
            else:
                stack.pop()
                del path[name]
                done.add(name)
    return []
