"""Which topics may look different after which bell, which are looked at together, and how often at most."""

from collections import deque
from collections.abc import Collection, Iterable

from frontend.live.topics import KINDS, job_of, kind_of

# A change is told at once, its followers together a moment later.
PAUSE_SECONDS = 0.1
# Looking at one list costs at most a fifth of a core, however large the cluster is; the others need not wait for it.
PAUSE_PER_LOOK = 4.0
LATEST_LOOKS = 5
# What is read at leisure is told at leisure.
_LONGER_PAUSES = {"people": 2.0, "mine": 0.5, "overview": 0.25, "readings": 0.9}
# Readings and waits change without a bell; of the rest a lost bell costs this much freshness.
LOOK_AGAIN_SECONDS = {"readings": 1.0, "overview": 1.0, "node": 1.0}
LOOK_AGAIN_ANYWAY_SECONDS = 5.0

# Of the topics of single jobs only those that a bell names.
_RUNG = {
    "jobs": KINDS - {"readings"},
    "nodes": {"nodes", "overview", "node", "health", "notices"},
    "tenants": KINDS - {"job", "readings"},
    "assignments": {"nodes", "overview", "node"},
    "logs": {"job"},
    "notices": {"notices"},
}
_TOGETHER = {"tenant": "tenants", "health": "people", "notices": "people"}


def concerned(bell: str, ids: Collection[int], watched: Iterable[str]) -> set[str]:
    """The topics that may look different; no ids: any of them."""
    kinds = _RUNG.get(bell, set())
    return {topic for topic in watched if kind_of(topic) in kinds and (not ids or job_of(topic) in (None, *ids))}


def group_of(topic: str) -> str:
    """What is loaded together."""
    kind = kind_of(topic) or ""
    return _TOGETHER.get(kind, kind)


def is_leisurely(group: str) -> bool:
    """Told after the others: it would hold them up."""
    return group in _LONGER_PAUSES


def pause_after(group: str, look_seconds: float) -> float:
    """How long the topics of a group are left alone after a look."""
    return max(_LONGER_PAUSES.get(group, PAUSE_SECONDS), PAUSE_PER_LOOK * look_seconds)


class Costs:
    """What a look at each group costs, in seconds: as long as the quickest of the latest took. What another took
    longer, it waited for something else; counted, that would keep a list still just when the machine is busy."""

    def __init__(self) -> None:
        self._latest: dict[str, deque[float]] = {}

    def add(self, group: str, seconds: float) -> None:
        self._latest.setdefault(group, deque(maxlen=LATEST_LOOKS)).append(seconds)

    def of(self, group: str) -> float:
        """0 before the first look."""
        return min(self._latest.get(group, [0.0]))


def period(topic: str) -> float:
    """After how long a topic is looked at though no bell rang."""
    return LOOK_AGAIN_SECONDS.get(kind_of(topic) or "", LOOK_AGAIN_ANYWAY_SECONDS)
