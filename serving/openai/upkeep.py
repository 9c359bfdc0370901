"""Keep the replicas and requests of the OpenAI API up in the database, once a second in each web process."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpusched.lib.bus import events
from gpusched.lib.db.sql import columns, execute, query
from serving.openai import rights
from serving.requests import endings
from serving.upkeep import SILENT_SECONDS, save_speeds, serves_openai
from tenants.auth.page_access import Credential

# A request in progress whose web process knows nothing of it has lost its answer somewhere: its place must not be lost.
UNKNOWN_SECONDS = 60.0
# A job that was preempted or requeued must answer a probe again.
_RELEASE_STOPPED = """
    UPDATE serving_replica r SET dispatcher = NULL
      FROM serving_endpoint e, jobs_all j
     WHERE e.id = r.endpoint_id AND j.id = r.job_id AND e.protocol = 'openai' AND r.ended_at IS NULL
       AND r.dispatcher IS NOT NULL AND j.state <> 'running'
"""
_UNPROVEN = f"""
    SELECT r.job_id, e.port, r.warm_at IS NOT NULL AS was_warm, EXISTS (
               SELECT 1 FROM serving_inferencerequest q
                WHERE q.replica_job_id = r.job_id AND q.state = 'running') AS is_busy
      FROM serving_replica r JOIN serving_endpoint e ON e.id = r.endpoint_id JOIN jobs_all j ON j.id = r.job_id
     WHERE e.protocol = 'openai' AND r.ended_at IS NULL AND NOT r.is_draining AND j.state = 'running'
       AND NOT EXISTS (
           SELECT 1 FROM serving_dispatcher d
            WHERE d.id = r.dispatcher AND d.seen_at > clock_timestamp() - interval '{SILENT_SECONDS} s')
       AND EXISTS (
           SELECT 1 FROM nodes_ranks k
            WHERE k.job_id = r.job_id AND k.rank = 0 AND k.state = 'running' AND k.node_id = ANY(%s::bigint[]))
"""
_STARTING = """
    SELECT r.job_id FROM serving_replica r JOIN serving_endpoint e ON e.id = r.endpoint_id
     WHERE e.protocol = 'openai' AND r.ended_at IS NULL AND r.dispatcher IS NULL
"""
_PROVE = """
    UPDATE serving_replica SET dispatcher = %s, warm_at = coalesce(warm_at, clock_timestamp())
     WHERE job_id = %s AND ended_at IS NULL RETURNING endpoint_id
"""
_SAVE_BUSY = """
    UPDATE serving_replica r SET busy_at = greatest(r.busy_at, clock_timestamp() - make_interval(secs => b.seconds))
      FROM unnest(%s::bigint[], %s::float8[]) AS b (job_id, seconds) WHERE r.job_id = b.job_id
"""
_UNKNOWN = f"""
    SELECT r.id FROM serving_inferencerequest r JOIN serving_endpoint e ON e.id = r.endpoint_id
     WHERE r.dispatcher = %s AND r.state = 'running' AND e.protocol = 'openai'
       AND r.started_at < clock_timestamp() - interval '{UNKNOWN_SECONDS} s' AND r.id <> ALL(%s::bigint[])
"""


@dataclass(frozen=True)
class Unproven:
    """A replica that gets no requests until it answers a probe. `was_warm`: it has answered one before. `is_busy`:
    requests are in progress there."""

    job_id: int
    port: int
    was_warm: bool
    is_busy: bool


def keep_up(
    dispatcher: int,
    local_nodes: Collection[int],
    in_flight: Collection[int],
    unchecked: Mapping[int, Credential],
    learned: Sequence[tuple[int, float]],
    ended: Sequence[tuple[int, float]],
) -> tuple[frozenset[int], list[Unproven]]:
    """Record what this process has learned (see Measurements), and end its requests that it does not know of, and those
    of `unchecked` whose callers have lost the right to them. Return the jobs of replicas that do not run yet, and the
    replicas on these nodes that must be probed."""
    if not serves_openai():
        return frozenset(), []
    save_speeds(learned)
    if ended:
        execute(_SAVE_BUSY, columns(ended, 2))
    if unknown := [row["id"] for row in query(_UNKNOWN, [dispatcher, list(in_flight)])]:
        _cancel(unknown, "client_left", "the answer was lost")
    if unchecked and (without_right := rights.ended(unchecked)):
        _cancel(without_right, "not_permitted", "its caller may no longer use the endpoint")
    execute(_RELEASE_STOPPED)
    starting = frozenset(row["job_id"] for row in query(_STARTING))
    return starting, [Unproven(**row) for row in query(_UNPROVEN, [list(local_nodes)])]


def _cancel(ids: Sequence[int], code: str, why: str) -> None:
    """End these requests. Their web processes end the responses when they notice."""
    over = endings.end(ids, "cancelled", code, why)
    events.changed("tasks", [request.id for request in over])


def prove(dispatcher: int, job_id: int) -> None:
    """Record that a replica answers: it gets requests from now on."""
    events.changed("endpoints", [row["endpoint_id"] for row in query(_PROVE, [dispatcher, job_id])])
