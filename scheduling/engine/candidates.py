"""The nodes that a placement was chosen from, as values."""

from typing import NamedTuple


class Candidate(NamedTuple):
    """A node that had room for a whole request when it was placed, and what it would have cost there (see
    `placement.place`): hot devices, ranks without the locality that they prefer, free GPUs that it would spoil for
    others in 25ths (less than 0: it uses up what was spoiled), memory of free devices that it opens (MiB), and devices
    left free. `alike`: other nodes of which the same is true. `taints`: PreferNoSchedule taints of the node that the
    job does not tolerate; `preferred`: the weight of the job's preferences that the node meets."""

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
    """Of all `nodes`, so many had `room`; the best of them."""

    nodes: int
    room: int
    candidates: tuple[Candidate, ...]
