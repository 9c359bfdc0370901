"""Choose the devices of a reservation, name what is in its way, and compute the next free slot. Pure.

Times are seconds since the epoch (UTC), sizes MiB, CPU in millicores. `inf`: a job without a time limit."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from scheduling.engine.affinity import Taint, untolerated
from scheduling.engine.board.shapes import is_model

# A slot further away than this many changes of the cluster is not looked for.
MAX_SLOTS = 2000


class Holding(NamedTuple):
    """A hold on a device, or on CPU and memory of a node, from `since` to before `until`: a reservation or a job of a
    tenant."""

    since: float
    until: float
    kind: str
    id: int
    tenant_id: int
    cpu_milli: int = 0
    memory_mb: int = 0


@dataclass(frozen=True)
class OfferedDevice:
    """A device in service. `island`: its NVLink island; None: alone, or unknown."""

    id: int
    model: str
    memory_mb: int | None
    island: int | None = None
    holdings: tuple[Holding, ...] = ()


@dataclass(frozen=True)
class OfferedNode:
    """A node in service. `holdings`: of its CPU and memory. `device_count` counts its devices out of service, too: each
    device has an equal part of the CPU and memory."""

    id: int
    name: str
    cpu_milli: int
    memory_mb: int
    device_count: int
    devices: tuple[OfferedDevice, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    holdings: tuple[Holding, ...] = ()

    @property
    def part(self) -> tuple[int, int]:
        """CPU and memory of one device."""
        count = max(self.device_count, 1)
        return self.cpu_milli // count, self.memory_mb // count


@dataclass(frozen=True)
class Shape:
    """The devices of a reservation. `gpu_models`: words of names; empty: any. `gpu_memory_mb`: per GPU."""

    gpus: int
    gpu_models: tuple[str, ...] = ()
    gpu_memory_mb: int | None = None
    node_selector: tuple[tuple[str, str], ...] = ()
    one_node: bool = True


class Chosen(NamedTuple):
    """A device, with its part of the CPU and memory of its node."""

    device_id: int
    node_id: int
    cpu_milli: int
    memory_mb: int


class Slot(NamedTuple):
    """A time at which the devices are free, and what keeps them until then; None: nothing does."""

    starts_at: float
    devices: tuple[Chosen, ...]
    blocker: Holding | None


def suitable(nodes: Iterable[OfferedNode], shape: Shape) -> list[OfferedNode]:
    """Return the nodes that could hold a part of the shape, with their suitable devices alone."""
    matching = []
    for node in nodes:
        if any(node.labels.get(name) != value for name, value in shape.node_selector):
            continue
        if untolerated(node.taints, (), shape.gpus):
            continue
        devices = tuple(device for device in node.devices if _suits(device, shape))
        if devices:
            matching.append(_replace_devices(node, devices))
    return matching


def largest(nodes: Sequence[OfferedNode], shape: Shape) -> int:
    """Return the largest number of GPUs that suitable nodes could ever hold for the shape."""
    counts = [len(node.devices) for node in nodes]
    return max(counts, default=0) if shape.one_node else sum(counts)


def choose(nodes: Sequence[OfferedNode], shape: Shape, starts_at: float, ends_at: float) -> tuple[Chosen, ...] | None:
    """Return devices of suitable nodes that are free all the time, on as few nodes as possible; None: too few are.

    On one node: the node with the fewest free devices that has enough, so that large ones stay whole."""
    free = [(node, devices) for node in nodes if (devices := _free(node, starts_at, ends_at))]
    if shape.one_node:
        enough = [entry for entry in free if len(entry[1]) >= shape.gpus]
        if not enough:
            return None
        node, devices = min(enough, key=lambda entry: (len(entry[1]), entry[0].id))
        return _picked(node, devices, shape.gpus)
    chosen: tuple[Chosen, ...] = ()
    for node, devices in sorted(free, key=lambda entry: (-len(entry[1]), entry[0].id)):
        chosen += _picked(node, devices, min(shape.gpus - len(chosen), len(devices)))
        if len(chosen) == shape.gpus:
            return chosen
    return None


def next_slot(nodes: Sequence[OfferedNode], shape: Shape, earliest: float, seconds: float) -> Slot | None:
    """Return the first time from `earliest` on at which the devices are free for `seconds`; None: never, because jobs
    without a time limit hold too many."""
    for starts_at in _changes(nodes, earliest):
        devices = choose(nodes, shape, starts_at, starts_at + seconds)
        if devices is not None:
            return Slot(starts_at, devices, _blocker(nodes, devices, earliest, starts_at))
    return None


def endless_blocker(nodes: Sequence[OfferedNode], earliest: float) -> Holding | None:
    """Return what holds a device the longest, if the devices are never free."""
    holdings = [h for node in nodes for h in (*node.holdings, *(h for d in node.devices for h in d.holdings))]
    return max((h for h in holdings if h.until > earliest), key=lambda h: (h.until, -h.id), default=None)


def _suits(device: OfferedDevice, shape: Shape) -> bool:
    if shape.gpu_models and not any(is_model(word, device.model) for word in shape.gpu_models):
        return False
    return shape.gpu_memory_mb is None or (device.memory_mb is not None and device.memory_mb >= shape.gpu_memory_mb)


def _replace_devices(node: OfferedNode, devices: tuple[OfferedDevice, ...]) -> OfferedNode:
    return OfferedNode(
        node.id, node.name, node.cpu_milli, node.memory_mb, node.device_count, devices, node.labels, node.taints,
        node.holdings,
    )  # fmt: skip


def _free(node: OfferedNode, starts_at: float, ends_at: float) -> list[OfferedDevice]:
    """Return the devices that are free all the time, at most as many as the CPU and memory of the node allow."""
    devices = [device for device in node.devices if not _overlapping(device.holdings, starts_at, ends_at)]
    if not devices or not node.holdings:
        return devices
    cpu_milli, memory_mb = node.part
    taken = _overlapping(node.holdings, starts_at, ends_at)
    # What follows each other is not held together: the use is highest when the period or a holding begins.
    moments = {starts_at, *[holding.since for holding in taken if holding.since > starts_at]}
    held = [[holding for holding in taken if holding.since <= at < holding.until] for at in moments]
    cpu_left = node.cpu_milli - max(sum(holding.cpu_milli for holding in entries) for entries in held)
    memory_left = node.memory_mb - max(sum(holding.memory_mb for holding in entries) for entries in held)
    limits = [left // part for left, part in ((cpu_left, cpu_milli), (memory_left, memory_mb)) if part]
    return devices[: max(min(limits, default=len(devices)), 0)]


def _overlapping(holdings: Iterable[Holding], starts_at: float, ends_at: float) -> list[Holding]:
    return [holding for holding in holdings if holding.since < ends_at and holding.until > starts_at]


def _picked(node: OfferedNode, devices: Sequence[OfferedDevice], count: int) -> tuple[Chosen, ...]:
    """Return `count` of these devices: of the smallest NVLink island that has enough, else of the largest ones."""
    islands: dict[int | None, list[OfferedDevice]] = {}
    for device in devices:
        islands.setdefault(device.island, []).append(device)
    groups = sorted(islands.values(), key=len)
    enough = [group for group in groups if len(group) >= count]
    pool = enough[0] if enough else [device for group in reversed(groups) for device in group]
    return tuple(Chosen(device.id, node.id, *node.part) for device in pool[:count])


def _changes(nodes: Sequence[OfferedNode], earliest: float) -> list[float]:
    """Return the times at which something becomes free, ascending, from `earliest` on."""
    holdings = (h for node in nodes for h in (*node.holdings, *(h for d in node.devices for h in d.holdings)))
    ends = {holding.until for holding in holdings if earliest < holding.until < inf}
    return [earliest, *sorted(ends)[:MAX_SLOTS]]


def _blocker(
    nodes: Sequence[OfferedNode], devices: Sequence[Chosen], earliest: float, starts_at: float
) -> Holding | None:
    """Return what kept the chosen devices, or their nodes, until `starts_at`."""
    if starts_at <= earliest:
        return None
    device_ids, node_ids = {chosen.device_id for chosen in devices}, {chosen.node_id for chosen in devices}
    mine = [h for n in nodes for d in n.devices if d.id in device_ids for h in d.holdings]
    of_nodes = [h for n in nodes if n.id in node_ids for h in n.holdings]
    anywhere = [h for n in nodes for h in (*n.holdings, *(h for d in n.devices for h in d.holdings))]
    for holdings in (mine, of_nodes, anywhere):
        ended = [holding for holding in holdings if earliest < holding.until <= starts_at]
        if ended:
            return max(ended, key=lambda h: (h.until, -h.id))
    return None
