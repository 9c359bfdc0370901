"""Which topics a change may concern, which topics are loaded together, and how often at most."""

from collections import deque
from collections.abc import Collection, Iterable
from functools import cache

from frontend.live.topics import parse, topics

# A change is sent at once, its followers together a moment later.
PAUSE_SECONDS = 0.1
# Loading one group costs at most a fifth of a core, however large the cluster is; the others need not wait for it.
PAUSE_PER_LOAD = 4.0
LATEST_LOADS = 5
# An event can get lost. Then the rows are that old at most.
LOAD_ANYWAY_SECONDS = 5.0


def invalidated_topics(change: str, ids: Collection[int], watched: Iterable[str]) -> set[str]:
    """Return the topics whose rows may differ. `ids`: of what changed; none: any. They count for topics of jobs."""
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
    """Whether the group is sent after the others, which it would delay."""
    return _pauses().get(group, 0.0) > 0


def pause_after(group: str, look_seconds: float) -> float:
    """Return for how many seconds a group is not loaded again."""
    return max(_pauses().get(group) or PAUSE_SECONDS, PAUSE_PER_LOAD * look_seconds)


class LoadCosts:
    """Seconds that a load of each group costs: the quickest of the latest. A slower one waited for something else;
    counted, it would keep a list still just when the machine is busy."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[float]] = {}

    def add(self, group: str, seconds: float) -> None:
        self._latest.setdefault(group, deque(maxlen=LATEST_LOADS)).append(seconds)

    def of(self, group: str) -> float:
        """0 before the first load."""
        return min(self._latest.get(group, [0.0]))


def period(name: str) -> float:
    """Return after how many seconds a topic is loaded without a change."""
    parsed = parse(name)
    return (parsed[0].period_seconds if parsed else 0.0) or LOAD_ANYWAY_SECONDS
