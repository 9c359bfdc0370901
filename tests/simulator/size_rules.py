"""Places jobs by size, as clusters without a fragmentation score do: a reserve for large jobs, and size classes.

Both use only settings of admins and users: `min-gpus` taints, labels of nodes, and preferred affinity.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from scheduling.engine.affinity import IN, MIN_GPUS, NO_SCHEDULE, PREFER_NO_SCHEDULE, Expression, Preference, Taint
from scheduling.engine.model import Node, Request
from scheduling.simulator.runs.cluster import Cluster

RESERVED_PERCENT = 20.0
# The fewest GPUs of a job of each class: 1, 2 to 4 (no trace has jobs of 5 to 7), and 8 or more.
CLASSES = (1, 2, 8)

_KEY = "size-class"
# Own nodes first, then those of the next class.
_OWN_WEIGHT, _NEXT_WEIGHT = 100, 50

# GPUs of a request or job -> how much work of that size there is, in any unit.
Demand = Mapping[int, float]


@dataclass(frozen=True, slots=True)
class SizeRule:
    """A rule. `placement`: how nodes are scored, a name of `scorers.PLACEMENTS`.

    `large_gpus`: jobs of at least this many GPUs have a reserve; 0: no reserve. `classes`: each size class has its own
    nodes and spills over to those of the other classes. `tainted`: the same by `min-gpus` taints that smaller jobs
    avoid, so that no job needs a preference of its own.
    """

    placement: str
    large_gpus: int = 0
    classes: bool = False
    tainted: bool = False

    @property
    def title(self) -> str:
        parts = [self.placement]
        if self.large_gpus:
            parts.append(f"reserve {self.large_gpus}+")
        if self.classes:
            parts.append("classes")
        if self.tainted:
            parts.append("tainted classes")
        return ", ".join(parts)

    def nodes(self, nodes: Sequence[Node], demand: Demand) -> tuple[Node, ...]:
        """Return the nodes with the taints or labels of this rule."""
        if self.large_gpus:
            return _with_reserve(nodes, demand, self.large_gpus)
        classed = _with_classes(nodes, demand) if self.classes or self.tainted else tuple(nodes)
        return tuple(map(_tainted, classed)) if self.tainted else classed

    def request(self, request: Request) -> Request:
        """Return the request with the preferences of its size class. A reserve needs none: the engine knows large jobs
        by their GPUs, and puts them on the reserve first, then on the other nodes."""
        return replace(request, preferred=_preferences(class_of(request.gpu_count))) if self.classes else request


@dataclass(frozen=True, slots=True, kw_only=True)
class SizedCluster(Cluster):
    """A cluster whose nodes and jobs follow a size rule. `demand`: determines the shares of the classes."""

    rule: SizeRule
    demand: Demand

    def nodes(self) -> tuple[Node, ...]:
        return self.rule.nodes(Cluster.nodes(self), self.demand)

    def request(self, gpus: int) -> Request:
        return self.rule.request(Cluster.request(self, gpus))


def class_of(gpus: int) -> int:
    """Return the number of the size class; jobs without GPUs count as those of one."""
    return max((number for number, minimum in enumerate(CLASSES) if minimum <= gpus), default=0)


def _with_reserve(nodes: Sequence[Node], demand: Demand, large_gpus: int) -> tuple[Node, ...]:
    """Taint nodes with 20 % of all GPUs. No node is reserved if the demand has no large job."""
    if not any(work > 0 for gpus, work in demand.items() if gpus >= large_gpus):
        return tuple(nodes)
    gpus = RESERVED_PERCENT / 100 * _gpus(nodes)
    chosen = _evenly([node for node in nodes if len(node.devices) >= large_gpus], gpus)
    taint = Taint(MIN_GPUS, str(large_gpus), NO_SCHEDULE)
    return tuple(replace(node, taints=(taint,)) if node.id in chosen else node for node in nodes)


def _with_classes(nodes: Sequence[Node], demand: Demand) -> tuple[Node, ...]:
    """Label each node with a class, so that each class has the part of the GPUs that it has of the demand.

    The widest class chooses first, of the nodes that hold its smallest job; the first class has what remains."""
    total = sum(demand.values())
    label = dict.fromkeys([node.id for node in nodes], 0)
    for number in range(len(CLASSES) - 1, 0, -1):
        part = sum(work for gpus, work in demand.items() if class_of(gpus) == number) / total
        fitting = [node for node in nodes if not label[node.id] and len(node.devices) >= CLASSES[number]]
        label |= dict.fromkeys(_evenly(fitting, part * _gpus(nodes)), number)
    return tuple(replace(node, labels={_KEY: str(label[node.id])}) for node in nodes)


def _tainted(node: Node) -> Node:
    """Turn the label of a class into a taint for smaller jobs; the first class has none."""
    number = int(node.labels[_KEY])
    taints = (Taint(MIN_GPUS, str(CLASSES[number]), PREFER_NO_SCHEDULE),) if number else ()
    return replace(node, labels={}, taints=taints)


def _preferences(number: int) -> tuple[Preference, ...]:
    """Prefer the nodes of the own class, then those of the middle class. The middle class spills over to the nodes of
    single GPUs first, so that the nodes of the widest jobs fill up last."""
    following = 0 if number == 1 else 1
    return tuple(
        Preference(weight, Expression(_KEY, IN, (str(preferred),)))
        for preferred, weight in ((number, _OWN_WEIGHT), (following, _NEXT_WEIGHT))
    )


def _evenly(nodes: Sequence[Node], gpus: float) -> set[int]:
    """Return the ids of nodes with about this many GPUs in total, the same part of each kind of node."""
    total = _gpus(nodes)
    chosen: set[int] = set()
    owed = 0.0
    for node in sorted(nodes, key=_kind):
        width = len(node.devices)
        owed += min(gpus / total, 1.0) * width
        if owed >= width / 2:
            chosen.add(node.id)
            owed -= width
    return chosen


def _gpus(nodes: Iterable[Node]) -> int:
    return sum(len(node.devices) for node in nodes)


def _kind(node: Node) -> tuple[int, str, int]:
    return len(node.devices), node.devices[0].model if node.devices else "", node.id
