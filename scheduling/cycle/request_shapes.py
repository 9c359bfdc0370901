"""Read requests from jobs: of one job, and the mix of recent jobs, for which placement keeps free capacity usable."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import msgspec

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import rows
from gpusched.protocol import affinity as protocol
from scheduling.engine.affinity import Expression, Preference, Toleration
from scheduling.engine.model import Request

# The arguments of `request_of`, from jobs as j.
COLUMNS = """
    j.gpu_count, j.gpu_memory_mb, j.gpu_models, j.gpu_sharing = 'shared', j.cpu_milli, j.memory_mb, j.gang_scheduling,
    j.ranks, j.node_selector::text, j.topology,
    CASE WHEN j.anti_affinity = '' THEN '' ELSE j.tenant_id || '/' || j.anti_affinity END,
    j.node_affinity::text, j.tolerations::text"""
# The latest jobs by id, so that a large history costs nothing; rare shapes weigh too little to matter.
_LATEST, _MAX_SHAPES = 5000, 100
_SHAPES = f"""
    SELECT {COLUMNS}, count(*)::float8
      FROM (SELECT * FROM jobs_all ORDER BY id DESC LIMIT {_LATEST}) j
     GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13
     ORDER BY 14 DESC, 1, 5, 6, 2, 3, 4, 7, 8, 9, 10, 11, 12, 13 LIMIT {_MAX_SHAPES}
"""
_CACHE_SECONDS = 60.0

RequestMix = tuple[tuple[Request, float], ...]
_mixes: Cache[None, RequestMix] = Cache(seconds=_CACHE_SECONDS)


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
    anti_affinity_key: str,
    affinity: str = "{}",
    tolerations: str = "[]",
) -> Request:
    """Return a request, the same object for each shape. `models` is a tuple; `selector`, `affinity` and `tolerations`
    are JSON text."""
    labels = tuple(sorted(msgspec.json.decode(selector, type=dict[str, str]).items()))
    request = Request(
        gpus, gpu_mb, models, shared, cpu_milli, memory_mb, gang, ranks, labels, topology, anti_affinity_key
    )
    if affinity == "{}" and tolerations == "[]":
        return request
    tolerated = msgspec.json.decode(tolerations, type=list[protocol.Toleration])
    return with_constraints(request, msgspec.json.decode(affinity, type=protocol.NodeAffinity), tolerated)


def with_constraints(
    request: Request, affinity: protocol.NodeAffinity | None, tolerations: Sequence[protocol.Toleration]
) -> Request:
    """Return the request with these in a fixed order, so that equal requests have one shape."""
    affinity = affinity or protocol.NodeAffinity()
    return replace(
        request,
        tolerations=tuple(sorted({_toleration(item) for item in tolerations}, key=repr)),
        required=tuple(sorted({_expression(item) for item in affinity.required})),
        preferred=tuple(sorted(Preference(item.weight, _expression(item)) for item in affinity.preferred)),
    )


def _toleration(toleration: protocol.Toleration) -> Toleration:
    is_any = toleration.operator is protocol.TolerationOperator.EXISTS
    return Toleration(toleration.key, None if is_any else toleration.value, str(toleration.effect or ""))


def _expression(expression: protocol.Expression) -> Expression:
    return Expression(expression.key, str(expression.operator), tuple(sorted(set(expression.values))))


def recent_mix() -> RequestMix:
    """Return (request, number of the latest jobs), most frequent first, at most a minute old."""
    return _mixes.get(None, _read_mix)


def _read_mix() -> RequestMix:
    mix = []
    for *shape, count in rows(_SHAPES):
        shape[2] = tuple(shape[2])
        mix.append((request_of(*shape), count))
    return tuple(mix)
