"""Reads requests out of jobs: of one job, and the mix of the latest, which free room is kept useful for."""

import time
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec

from gpusched.lib.db.sql import rows
from gpusched.protocol import affinity as protocol
from scheduling.engine.affinity import Expression, Preference, Toleration
from scheduling.engine.model import Request

# What `request_of` takes, of jobs_job as j.
COLUMNS = """
    j.gpu_count, j.gpu_memory_mb, j.gpu_models, j.gpu_sharing = 'shared', j.cpu_milli, j.memory_mb, j.gang_scheduling,
    j.ranks, j.node_selector::text, j.topology,
    CASE WHEN j.anti_affinity = '' THEN '' ELSE j.tenant_id || '/' || j.anti_affinity END,
    j.node_affinity::text, j.tolerations::text"""
# The latest jobs by id, so that a large history costs nothing; rare shapes weigh too little to matter.
_LATEST, _MAX_SHAPES = 5000, 100
_MIX = f"""
    SELECT {COLUMNS}, count(*)::float8
      FROM (SELECT * FROM jobs_all ORDER BY id DESC LIMIT {_LATEST}) j
     GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
     ORDER BY 14 DESC, 1, 5, 6, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13 LIMIT {_MAX_SHAPES}
"""
_CACHE_SECONDS = 60.0

Mix = tuple[tuple[Request, float], ...]
_known: tuple[float, Mix] = (float("-inf"), ())


@lru_cache(maxsize=10_000)
def request_of(
    gpus: int,
    gpu_mb: int | None,
    models: tuple[str, ...],
    shared: bool,
    cpu_milli: int,
    memory_mb: int,
    gang: bool,
    ranks: int | None,
    selector: str,
    topology: str,
    apart: str,
    affinity: str = "{}",
    tolerations: str = "[]",
) -> Request:
    """One object for each shape rather than for each job. `models` as a tuple; `selector`, `affinity` and `tolerations`
    as JSON text."""
    labels = tuple(sorted(msgspec.json.decode(selector, type=dict[str, str]).items()))
    request = Request(gpus, gpu_mb, models, shared, cpu_milli, memory_mb, gang, ranks, labels, topology, apart)
    if affinity == "{}" and tolerations == "[]":
        return request
    tolerated = msgspec.json.decode(tolerations, type=list[protocol.Toleration])
    return with_constraints(request, msgspec.json.decode(affinity, type=protocol.NodeAffinity), tolerated)


def with_constraints(
    request: Request, affinity: protocol.NodeAffinity | None, tolerations: Sequence[protocol.Toleration]
) -> Request:
    """Return the request with these in a fixed order, so that equal ones are one shape."""
    affinity = affinity or protocol.NodeAffinity()
    return replace(
        request,
        tolerations=tuple(sorted({_toleration(one) for one in tolerations}, key=repr)),
        required=tuple(sorted({_expression(one) for one in affinity.required})),
        preferred=tuple(sorted(Preference(one.weight, _expression(one)) for one in affinity.preferred)),
    )


def _toleration(given: protocol.Toleration) -> Toleration:
    is_any = given.operator is protocol.TolerationOperator.EXISTS
    return Toleration(given.key, None if is_any else given.value, str(given.effect or ""))


def _expression(given: protocol.Expression) -> Expression:
    return Expression(given.key, str(given.operator), tuple(sorted(set(given.values))))


def recent_mix() -> Mix:
    """(request, how many of the latest jobs), the most frequent first; at most a minute old."""
    global _known
    if time.monotonic() - _known[0] > _CACHE_SECONDS:
        found = []
        for *shape, count in rows(_MIX):
            shape[2] = tuple(shape[2])
            found.append((request_of(*shape), count))
        _known = (time.monotonic(), tuple(found))
    return _known[1]
