"""Learns from the ends of attempts in the order of their events, in transactions that also move the cursor.

So a kill between two batches loses nothing and learns nothing twice. Runs in housekeeping, away from cycles.
"""

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import msgspec
from django.conf import settings
from django.db import transaction

from gpusched.lib.db.sql import as_json, columns, execute, query, rows
from gpusched.protocol.exits import ExitClass
from gpusched.protocol.reasons import NODE_FAULTS, EndReason
from jobs.events.log import frontier
from scheduling.history import switch
from scheduling.history.commands import command_of
from scheduling.prediction.ends import End, Summary
from scheduling.prediction.keys import JobKind, baseline_key, keys_of
from scheduling.prediction.learner import Learner, Outcome, Scored
from scheduling.prediction.memory import memory_keys
from scheduling.prediction.ranges import Tracker

# One batch examines this many events: about half a second. A run learns at most this many batches.
BATCH_EVENTS, MAX_BATCHES = 1_000, 40
KEEP_DAYS, KEEP_KEY_DAYS = 30.0, 90.0
# Scores compare logarithms of run times, and 0 has none: a clock was set back during the run.
MIN_SCORED_SECONDS = 0.001
_OUT_OF_MEMORY = {"gpu": ExitClass.CUDA_OOM, "host": ExitClass.HOST_OOM}
# Ends that others caused: the job might have run for longer.
_STOPPED = {
    EndReason.SIGNALLED, EndReason.TIME_LIMIT, EndReason.CANCELLED, EndReason.REQUEUED, EndReason.PREEMPTED,
    EndReason.RANK_FAILED, EndReason.HELD_IDLE, EndReason.SUPERSEDED, *NODE_FAULTS,
}  # fmt: skip

_ATTEMPTS = """
    SELECT a.id AS attempt_id, a.ended_at, extract(epoch FROM a.ended_at)::float8 AS at, a.reason, a.exit_code,
           extract(epoch FROM a.ended_at - a.started_at)::float8 AS seconds, j.tenant_id, j.user_id, j.gpu_count,
           j.gpu_models, coalesce(w.payload, j.payload) AS payload, a.evidence->>'class' AS exit_class,
           -- The peak of the samples of its GPUs, unless it shared them, or the amount that was too little; and the
           -- peak of all processes of its ranks together.
           greatest((a.evidence->>'had_gpu_memory_mb')::float8, (SELECT max(s.memory_used_mb)
              FROM jsonb_array_elements(a.placement) AS r, jsonb_array_elements(r->'devices') AS g
              JOIN nodes_devices d ON d.uuid = g->>'uuid' JOIN nodes_samples s ON s.device_id = d.id
             WHERE (j.gpu_sharing = 'exclusive' OR j.gpu_memory_mb IS NULL)
               AND s.at BETWEEN a.started_at AND a.ended_at)) AS gpu_peak_mb,
           (SELECT sum((o.value->>'peak_memory_mb')::float8) FROM jsonb_each(a.outcomes) AS o
             WHERE o.value->>'peak_memory_of' = 'rank') AS host_peak_mb
      FROM (SELECT id, job_id, attempt FROM jobs_events WHERE id > %s AND id <= %s AND attempt > 0
               AND kind = 'ended') e
      JOIN jobs_attempts a ON a.job_id = e.job_id AND a.number = e.attempt AND a.started_at IS NOT NULL
           AND a.ended_at IS NOT NULL
      JOIN jobs_all j ON j.id = a.job_id LEFT JOIN jobs_all w ON w.id = j.array_id
     ORDER BY e.id
"""


def learn() -> int:
    """Learn from all new ends, and switch tenants on or off. Return how many ends were learned."""
    if not settings.ENV.predictions:
        return 0
    until, learned = frontier.advance(), 0
    for _ in range(MAX_BATCHES):
        with transaction.atomic():
            number, is_complete = _learn_batch(until)
        learned += number
        if is_complete:
            break
    with transaction.atomic():
        execute(
            "DELETE FROM scheduling_predictionscore WHERE ended_at < now() - make_interval(secs => %s)",
            [KEEP_DAYS * 86400],
        )
        execute("DELETE FROM scheduling_runhistory WHERE at < extract(epoch FROM now()) - %s", [KEEP_KEY_DAYS * 86400])
        if switch.update_tenants():
            execute("UPDATE scheduling_learningprogress SET version = version + 1")
    return learned


def _learn_batch(until: int) -> tuple[int, bool]:
    """Learn from one batch; return the number of ends, and whether it was the last batch."""
    execute("INSERT INTO scheduling_learningprogress (id, event_id, version) VALUES (1, 0, 0) ON CONFLICT DO NOTHING")
    # The lock keeps two workers from learning the same batch.
    [(since, version)] = rows("SELECT event_id, version FROM scheduling_learningprogress FOR UPDATE")
    last = min(until, since + BATCH_EVENTS)
    if last <= since:
        return 0, True
    attempts = query(_ATTEMPTS, [since, last])
    if attempts:
        _learn_attempts(attempts, version + 1)
    execute(
        "UPDATE scheduling_learningprogress SET event_id = %s, version = version + %s", [last, 1 if attempts else 0]
    )
    return len(attempts), last == until


class _Learned(NamedTuple):
    attempt: dict[str, Any]
    scored: Scored


def _learn_attempts(attempts: Sequence[dict[str, Any]], version: int) -> None:
    kinds = [
        JobKind.of(row["tenant_id"], row["user_id"], command_of(row["payload"]), row["gpu_count"], row["gpu_models"])
        for row in attempts
    ]
    learner = _load_learner(kinds)
    results = []
    for row, kind in zip(attempts, kinds, strict=True):
        is_clean = row["reason"] == EndReason.EXITED and row["exit_code"] == 0
        outcome = Outcome(kind, row["at"], row["seconds"], is_clean, row["reason"] in _STOPPED)
        scored = learner.learn(outcome)
        if scored is not None:
            results.append(_Learned(row, scored))
        _learn_memory(learner, row, kind)
    _store_keys(learner, version)
    _store_trackers(learner)
    _store_scores(results)


def _learn_memory(learner: Learner, row: dict[str, Any], kind: JobKind) -> None:
    """Add the peaks of an attempt. One that ran out of memory needed more than its peak."""
    for resource, ran_out in _OUT_OF_MEMORY.items():
        peak_mb = row[f"{resource}_peak_mb"]
        if peak_mb:
            end = End(row["at"], log(peak_mb), row["exit_class"] != ran_out, kind.user_id)
            for key in memory_keys(kind, resource):
                learner.append(key, end, spans_users=False)


def _load_learner(kinds: Sequence[JobKind]) -> Learner:
    """Return a learner with the stored ends under the keys of these jobs."""
    learner = Learner()
    distinct = set(kinds)
    keys = {key for kind in distinct for key in (*keys_of(kind), baseline_key(kind))}
    keys |= {key for kind in distinct for resource in _OUT_OF_MEMORY for key in memory_keys(kind, resource)}
    for key, ends, *summary in rows(
        """SELECT key, ends::text, at, count, weight, median, spread FROM scheduling_runhistory
            WHERE key = ANY(%s)""",
        [sorted(keys)],
    ):
        learner.ends[key] = tuple(msgspec.json.decode(ends, type=list[End]))
        learner.summaries[key] = Summary(*summary)
    for tenant_id, group, low, high, count in rows(
        'SELECT tenant_id, "group", low, high, count FROM scheduling_rangetracker WHERE tenant_id = ANY(%s)',
        [sorted({kind.tenant_id for kind in kinds})],
    ):
        learner.trackers[tenant_id, group] = Tracker(low, high, count)
    return learner


def _store_keys(learner: Learner, version: int) -> None:
    table = [
        (key, as_json(learner.ends[key]), *learner.summaries[key], version) for key in sorted(learner.changed_keys)
    ]
    execute(
        """INSERT INTO scheduling_runhistory (key, ends, at, count, weight, median, spread, version)
           SELECT * FROM unnest(%s::text[], %s::jsonb[], %s::float8[], %s::int[], %s::float8[], %s::float8[],
                                %s::float8[], %s::bigint[])
               ON CONFLICT (key) DO UPDATE SET ends = excluded.ends, at = excluded.at, count = excluded.count,
                  weight = excluded.weight, median = excluded.median, spread = excluded.spread,
                  version = excluded.version""",
        columns(table, 8),
    )


def _store_trackers(learner: Learner) -> None:
    table = [(*group, *tracker) for group, tracker in sorted(learner.trackers.items())]
    execute(
        """INSERT INTO scheduling_rangetracker (tenant_id, "group", low, high, count)
           SELECT * FROM unnest(%s::bigint[], %s::int[], %s::float8[], %s::float8[], %s::int[])
               ON CONFLICT (tenant_id, "group") DO UPDATE SET low = excluded.low, high = excluded.high,
                  count = excluded.count""",
        columns(table, 5),
    )


def _store_scores(results: Sequence[_Learned]) -> None:
    table = [
        (row["attempt_id"], row["tenant_id"], row["ended_at"], max(row["seconds"], MIN_SCORED_SECONDS),
         scored.prediction.p10, scored.prediction.p50, scored.prediction.p90, scored.baseline)
        for row, scored in results
        if scored.is_observed
    ]  # fmt: skip
    execute(
        """INSERT INTO scheduling_predictionscore (attempt_id, tenant_id, ended_at, seconds, p10, p50, p90, baseline)
           SELECT * FROM unnest(%s::bigint[], %s::bigint[], %s::timestamptz[], %s::float8[], %s::float8[],
                                %s::float8[], %s::float8[], %s::float8[])
               ON CONFLICT DO NOTHING""",
        columns(table, 8),
    )
