"""Topics affected by a change, groups that are loaded together, and their rate limits."""

from collections import deque
from collections.abc import Collection, Iterable
from functools import cache

from frontend.live.topics import parse, topics

# The first change is sent at once, later ones together after this pause.
PAUSE_SECONDS = 0.1
# Limits each group to a fifth of a core, however large the cluster is.
PAUSE_PER_LOAD = 4.0
LATEST_LOADS = 5
# The maximum age of rows if an event is lost.
LOAD_ANYWAY_SECONDS = 5.0


def invalidated_topics(change: str, ids: Collection[int], watched: Iterable[str]) -> set[str]:
    """Return the topics whose rows may differ. `ids`: the changed rows, empty for any; used for job topics."""
    result = set()
    for name in watched:
        parsed = parse(name)
        if parsed is not None and change in parsed[0].invalidated_by:
            topic, key = parsed
            if not ids or topic.kind != "job" or key in ids:
                result.add(name)
    return result


def group_of(name: str) -> str:
    """Return the group of topics that this one is loaded with."""
    parsed = parse(name)
    return (parsed[0].group or parsed[0].kind) if parsed else ""


@cache
def _pauses() -> dict[str, float]:
    pauses: dict[str, float] = {}
    for topic in topics().values():
        group = topic.group or topic.kind
        pauses[group] = max(pauses.get(group, 0.0), topic.pause_seconds)
    return pauses


def is_low_priority(group: str) -> bool:
    """Return whether the group is sent after the others, which it would delay."""
    return _pauses().get(group, 0.0) > 0


def pause_after(group: str, load_seconds: float) -> float:
    """Return for how many seconds a group is not loaded again."""
    return max(_pauses().get(group) or PAUSE_SECONDS, PAUSE_PER_LOAD * load_seconds)


class LoadCosts:
    """Load time of each group: the minimum of the latest loads. A slower load waited for something else; counting it
    would slow the feed just when the machine is busy."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[float]] = {}

    def add(self, group: str, seconds: float) -> None:
        self._latest.setdefault(group, deque(maxlen=LATEST_LOADS)).append(seconds)

    def of(self, group: str) -> float:
        """Return the seconds of a load; 0 before the first."""
        return min(self._latest.get(group, [0.0]))


def period(name: str) -> float:
    """Return after how many seconds a topic is loaded without a change."""
    parsed = parse(name)
    return (parsed[0].period_seconds if parsed else 0.0) or LOAD_ANYWAY_SECONDS
