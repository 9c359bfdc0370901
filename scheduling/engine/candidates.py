"""The nodes that a placement was chosen from, as values."""

from typing import NamedTuple


class Candidate(NamedTuple):
    """A node that could hold a whole request when it was placed, and its cost there (see `placement.place`).

    `hot`: hot devices; `misses`: ranks without the locality that they prefer; `spoils`: free GPUs that it would spoil
    for others in 25ths (below 0: it uses up spoiled ones); `opened_mb`: memory of free devices that it opens (MiB);
    `left`: devices left free; `alike`: other nodes with the same values; `taints`: PreferNoSchedule taints of the node
    that the job does not tolerate; `preferred`: the weight of the job's preferences that the node meets.
    """

    node_id: int
    hot: int
    misses: int
    spoils: int
    opened_mb: int
    left: int
    alike: int
    taints: int = 0
    preferred: int = 0


class CandidateSet(NamedTuple):
    """The best candidates of a placement. `room`: how many of all `nodes` could hold the request."""

    nodes: int
    room: int
    candidates: tuple[Candidate, ...]
