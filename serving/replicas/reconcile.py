"""Start and stop the jobs of replicas, as the load of their endpoints wants."""

import logging
from dataclasses import replace
from typing import Any

import msgspec
from django.conf import settings
from django.db import DatabaseError, transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import events
from gpusched.lib.db.locks import Lock
from gpusched.lib.db.sql import execute, query, rows
from gpusched.protocol.reasons import Pending, sentence
from jobs.actions import job_actions
from jobs.submit import submit
from serving.endpoints.endpoints import template_request
from serving.models import Endpoint, EndpointState, Protocol
from serving.prewarming import rounds
from serving.replicas.place_lock import lock_places
from serving.replicas.scaling import Decision, Demand, LiveReplica, decide
from serving.replicas.warm_up import with_warm_up
from tenants.auth.identity import identity_of_server, identity_of_user
from tenants.people import members
from tenants.tenancy import archived

logger = logging.getLogger(__name__)
_ONE_AT_A_TIME = "SELECT pg_try_advisory_xact_lock(%s)"
# A replica that ended before it was warm counts as a failure until one is warm again, or for an hour.
_END = """
    UPDATE serving_replica r SET ended_at = clock_timestamp(), dispatcher = NULL
      FROM (SELECT r.job_id FROM serving_replica r LEFT JOIN jobs_all j ON j.id = r.job_id
             WHERE r.ended_at IS NULL AND (j.id IS NULL OR j.ended_at IS NOT NULL)) e
     WHERE r.job_id = e.job_id
"""
# Its job was retried: it serves again, and stops when it is idle.
_RETRIED = """
    UPDATE serving_replica r
       SET created_at = clock_timestamp(), ended_at = NULL, warm_at = NULL, busy_at = NULL, is_draining = false
      FROM jobs_all j WHERE j.id = r.job_id AND r.ended_at IS NOT NULL AND j.ended_at IS NULL
"""
_DEMANDS = """
    SELECT e.id, e.tenant_id, CASE WHEN t.archived_at IS NOT NULL THEN t.name END AS archived_tenant, e.state,
           e.problem, e.min_replicas, e.max_replicas, e.idle_seconds, q.seconds_per_cost,
           coalesce(q.cost, 0) AS queued_cost, coalesce(q.running, 0) AS running, r.replicas, d.draining, f.failures,
           f.failed_seconds, f.failed_job,
           coalesce(e.prewarming AND p.worth IS NOT NULL AND NOT p.is_over_budget, false) AS is_prewarmed,
           coalesce(p.is_kept, false) AS is_kept,
           coalesce((e.template ->> 'gpu_count')::int, 0) > 0 AS holds_gpus
      FROM serving_endpoint e JOIN tenants_all t ON t.id = e.tenant_id
      LEFT JOIN serving_prewarming p ON p.endpoint_id = e.id
      LEFT JOIN LATERAL (
           SELECT sum(w.cost) AS cost, sum(w.running)::bigint AS running,
                  -- Of what waits: each endpoint has its own speed.
                  sum(w.cost * s.seconds_per_cost) / nullif(sum(w.cost), 0) AS seconds_per_cost
             FROM serving_endpoint s CROSS JOIN LATERAL (
                  SELECT sum(cost) FILTER (WHERE state = 'queued') AS cost,
                         count(*) FILTER (WHERE state = 'running') AS running
                    FROM serving_inferencerequest WHERE endpoint_id = s.id AND state IN ('queued', 'running')) w
            WHERE s.id = e.id OR s.replicas_of_id = e.id) q ON true
      CROSS JOIN LATERAL (
           SELECT coalesce(json_agg(json_build_array(r.job_id, CASE WHEN r.warm_at IS NOT NULL AND NOT EXISTS (
                      SELECT 1 FROM serving_inferencerequest b
                       WHERE b.replica_job_id = r.job_id AND b.state = 'running')
                  THEN date_part('epoch', clock_timestamp() - greatest(r.warm_at, r.busy_at)) END,
                  CASE WHEN j.state IN ('pending', 'held') THEN date_part('epoch', clock_timestamp() - greatest(
                      r.created_at, CASE WHEN q.cost IS NULL THEN p.active_at END)) END)), '[]') AS replicas
             FROM serving_replica r LEFT JOIN jobs_all j ON j.id = r.job_id
            WHERE r.endpoint_id = e.id AND r.ended_at IS NULL AND NOT r.is_draining) r
      CROSS JOIN LATERAL (
           SELECT coalesce(array_agg(r.job_id), '{}') AS draining
             FROM serving_replica r JOIN jobs_all j ON j.id = r.job_id
            WHERE r.endpoint_id = e.id AND r.ended_at IS NULL AND r.is_draining
              AND j.state IN ('pending', 'held', 'scheduled', 'running')) d
      CROSS JOIN LATERAL (
           SELECT count(*) AS failures, date_part('epoch', clock_timestamp() - max(r.ended_at)) AS failed_seconds,
                  (array_agg(r.job_id ORDER BY r.ended_at DESC, r.job_id DESC))[1] AS failed_job
             FROM serving_replica r
            WHERE r.endpoint_id = e.id AND r.warm_at IS NULL AND NOT r.is_draining
              AND r.ended_at BETWEEN clock_timestamp() - interval '1 hour' AND clock_timestamp()
              AND r.ended_at > coalesce((SELECT max(w.warm_at) FROM serving_replica w WHERE w.endpoint_id = e.id),
                                        '-infinity')) f
     WHERE e.replicas_of_id IS NULL AND (e.state <> 'removed' OR EXISTS (
           SELECT 1 FROM serving_replica l WHERE l.endpoint_id = e.id AND l.ended_at IS NULL))
     ORDER BY e.id
"""
# A preempted replica, or one of a lost node, waits to run again, or does so already in a later attempt.
_COLD = """
    UPDATE serving_replica r
       SET created_at = CASE WHEN j.state = 'pending' THEN clock_timestamp() ELSE a.scheduled_at END, warm_at = NULL,
           busy_at = NULL, dispatcher = NULL
      FROM jobs_all j LEFT JOIN jobs_attempts a ON a.job_id = j.id AND a.number = j.attempt
     WHERE j.id = r.job_id AND r.ended_at IS NULL AND r.warm_at IS NOT NULL
       AND (j.state IN ('pending', 'scheduled') OR a.scheduled_at > r.warm_at)
"""
# Times of before the clock was set back. Until then an idle replica would keep its GPUs, and replicas that fail would
# start again without a pause.
_AFTER_CLOCK_STEP = """
    UPDATE serving_replica SET warm_at = least(warm_at, clock_timestamp()), busy_at = least(busy_at, clock_timestamp())
     WHERE greatest(warm_at, busy_at) > clock_timestamp() + interval '1 minute'
"""
# Jobs that wait for what replicas hold: GPUs, or those that a limit leaves to their tenant. Others would not start: of
# the constraints only anti-affinity ends with another job.
_OF_ALL = (
    Pending.RECLAIM_PENDING, Pending.PREEMPT_DELAY, Pending.PRIORITY, Pending.RESERVED, Pending.FRAGMENTED,
    Pending.TOPOLOGY, Pending.CAPACITY, Pending.CPU_MEMORY,
)  # fmt: skip
_OF_TENANT = (Pending.USER_CAP, Pending.QUOTA_WAIT)
_WAITING_FOR_GPUS = """
    SELECT coalesce(bool_or(reason = ANY(%(of_all)s) OR reason = %(constraint)s AND evidence ? 'apart'), false),
           coalesce(array_agg(DISTINCT tenant_id) FILTER (WHERE reason = ANY(%(of_tenant)s)), '{}')
      FROM jobs_all
     WHERE is_waiting AND state = 'pending' AND gpu_count > 0
       AND greatest(submitted_at, eligible_at) < clock_timestamp() - interval '1 s'
"""

# Jobs of a node share its ports, except in containers with a network of their own.
_TAKEN_PORT = """
    SELECT e.port, n.name AS node
      FROM serving_replica r JOIN serving_endpoint e ON e.id = r.endpoint_id
      JOIN nodes_ranks k ON k.job_id = r.job_id JOIN nodes_all n ON n.id = k.node_id
     WHERE r.job_id = %s AND e.template ->> 'image' IS NULL AND EXISTS (
           SELECT 1 FROM serving_replica o JOIN serving_endpoint p ON p.id = o.endpoint_id
             JOIN nodes_ranks b ON b.job_id = o.job_id
            WHERE p.port = e.port AND p.template ->> 'image' IS NULL AND o.job_id <> r.job_id
              AND b.node_id = k.node_id AND b.started_at < k.started_at
              AND coalesce(b.ended_at > k.started_at, true))
     ORDER BY k.number DESC LIMIT 1
"""
_DRAIN = """
    UPDATE serving_replica SET is_draining = true
     WHERE job_id = %s AND (%s OR NOT EXISTS (
           SELECT 1 FROM serving_inferencerequest q WHERE q.replica_job_id = job_id AND q.state = 'running'))
"""


def reconcile() -> bool:
    """Start and stop replicas of all endpoints. Return False if another process is doing it."""
    with transaction.atomic():
        if not rows(_ONE_AT_A_TIME, [Lock.REPLICAS])[0][0]:
            return False
        execute(_END)
        execute(_RETRIED)
        execute(_COLD)
        execute(_AFTER_CLOCK_STEP)
        reasons = {"of_all": list(_OF_ALL), "of_tenant": list(_OF_TENANT), "constraint": Pending.CONSTRAINT}
        [(by_all, by_tenants)] = rows(_WAITING_FOR_GPUS, reasons)
        rounds.update()
        for row in query(_DEMANDS):
            are_gpus_needed = row["holds_gpus"] and (by_all or row["tenant_id"] in by_tenants)
            try:
                with transaction.atomic():
                    _reconcile_one(row, are_gpus_needed)
            except DatabaseError:
                raise  # an outage, or a deadlock: that holds for all
            except Exception:
                logger.exception("the replicas of endpoint %s stay as they are", row["id"])
    return True


def _reconcile_one(row: dict[str, Any], are_gpus_needed: bool) -> None:
    """Start and stop replicas of one endpoint. An error must not stop those of other tenants."""
    decision = decide(_demand(row, are_gpus_needed))
    decision = replace(decision, stop=(*decision.stop, *row["draining"]))
    refusal = ""
    if row["archived_tenant"]:
        decision, refusal = replace(decision, start=0), archived.refusal(row["archived_tenant"]).detail
    is_ahead = not row["queued_cost"] and not row["running"] and row["is_prewarmed"] and row["is_kept"]
    if decision.start or decision.stop or decision.drain:
        refusal = _act(row["id"], decision, is_ahead) or refusal
    failure = _failure(row["failed_job"]) if row["failures"] and not refusal else ""
    _set_problem(row["id"], row["problem"], refusal or failure)


def _demand(row: dict[str, Any], are_gpus_needed: bool) -> Demand:
    return Demand(
        queued_cost=row["queued_cost"],
        running=row["running"],
        seconds_per_cost=row["seconds_per_cost"],
        replicas=[LiveReplica(*replica) for replica in row["replicas"]],
        min_replicas=row["min_replicas"],
        max_replicas=row["max_replicas"],
        idle_seconds=row["idle_seconds"],
        is_draining=row["state"] == "draining",
        is_removed=row["state"] == "removed",
        are_gpus_needed=are_gpus_needed,
        failures=row["failures"],
        failed_seconds=row["failed_seconds"] if row["failures"] else float("inf"),
        is_prewarmed=settings.ENV.prewarming and row["is_prewarmed"],
        is_kept=row["is_kept"],
    )


def _act(endpoint_id: int, decision: Decision, is_ahead: bool) -> str:
    """Start the jobs of replicas in the name of the endpoint's owner, and stop them in that of the server, as the owner
    may have lost the right. Return why a start was refused, as by a limit of the tenant; the next round tries again.

    `is_ahead`: pre-warming starts replicas, without a request that waits, so there is time for a warm-up."""
    endpoint = Endpoint.objects.select_related("tenant", "owner").get(pk=endpoint_id)
    refusal = ""
    try:
        for _ in range(decision.start):
            with transaction.atomic():
                _start(endpoint, is_ahead)
    except Problem as problem:
        refusal = problem.detail
    if decision.drain:
        execute("UPDATE serving_replica SET is_draining = true WHERE job_id = ANY(%s)", [list(decision.drain)])
        events.changed("endpoints", [endpoint_id])
    for job_id in decision.stop:
        with transaction.atomic():
            _stop(endpoint, job_id)
    return refusal


def _failure(job_id: int) -> str:
    """Return why a replica ended before it accepted requests."""
    ended = query("SELECT reason, evidence FROM jobs_all WHERE id = %s", [job_id])
    why = f": {sentence(ended[0]['reason'], ended[0]['evidence'])}" if ended and ended[0]["reason"] else ""
    for taken in query(_TAKEN_PORT, [job_id]):
        why += f"; another replica on node {taken['node']} had port {taken['port']} already"
    return f"job {job_id}, its latest replica, ended before it accepted requests{why}"


def _set_problem(endpoint_id: int, previous: str, problem: str) -> None:
    problem = problem[:1000]
    if problem != previous:
        execute("UPDATE serving_endpoint SET problem = %s WHERE id = %s", [problem, endpoint_id])
        events.changed("endpoints", [endpoint_id])


def _stop(endpoint: Endpoint, job_id: int) -> None:
    """Stop the job of a replica, unless it has got a request since the decision."""
    if endpoint.protocol == Protocol.OPENAI:
        lock_places(endpoint.pk)
    if execute(_DRAIN, [job_id, endpoint.state == EndpointState.REMOVED]):
        job_actions.cancel(job_id, identity_of_server())


def _start(endpoint: Endpoint, is_ahead: bool) -> None:
    identity = identity_of_user(endpoint.owner)
    if why := members.why_owner_starts_nothing(endpoint.owner, endpoint.tenant, identity):
        raise Problem(403, "not_permitted", why, next_step="create the endpoint as another user")
    request = template_request(endpoint)
    if is_ahead and endpoint.warm_up:
        request = with_warm_up(request, endpoint.warm_up, endpoint.warm_up_seconds)
    # A replica runs until it is scaled down, so the tenant's default time limit does not apply to it.
    owner = replace(identity, default_minutes={})
    submitted = submit.submit(request, owner)
    job_id = msgspec.json.decode(submitted.answer)["job_id"]
    sql = "INSERT INTO serving_replica (job_id, endpoint_id, is_draining) VALUES (%s, %s, false)"
    execute(sql, [job_id, endpoint.pk])
    events.changed("endpoints", [endpoint.pk])  # so that each web process knows the job
