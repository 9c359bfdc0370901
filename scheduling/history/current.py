"""Adds predictions to a snapshot: run times of waiting jobs, and ends of running ones, of tenants that use them."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
from django.conf import settings

from gpusched.lib.cache import Cache
from gpusched.lib.db.sql import prepared_rows, rows
from scheduling.engine.model import Job, RunningJob, Snapshot, public_id
from scheduling.history.commands import command_of
from scheduling.prediction.ends import Summary
from scheduling.prediction.keys import JobKind, Keys, keys_of
from scheduling.prediction.predictor import Predictor
from scheduling.prediction.ranges import Tracker

# Predictions of waiting jobs change when new ends have been learned, and with time after this long: a queue of the same
# objects costs a plan a fraction of one with new objects.
REFRESH_SECONDS = 60.0
# Predicted ends of running jobs are computed again after this long.
REFRESH_END_SECONDS = 10.0


class Learned(NamedTuple):
    """All that was learned until `version`. `tenants`: those that use predictions."""

    version: int
    tenants: frozenset[int]
    summaries: dict[str, Summary]
    trackers: dict[tuple[int, int], Tracker]


class _Waiting(NamedTuple):
    """A waiting job with its prediction. `basis`: what it was made from."""

    job: Job
    basis: tuple[int, int, float | None]
    predicted: Job


class _Running(NamedTuple):
    """The predicted end of a running job. `basis`: what it was made from."""

    basis: tuple[int, int, float, float | None]
    end_at: float | None


_running: Cache[None, dict[int, _Running]] = Cache()
_learned: Cache[None, Learned] = Cache()
_keys: Cache[None, dict[int, Keys]] = Cache()
_waiting: Cache[None, dict[int, _Waiting]] = Cache()
_NOTHING = Learned(0, frozenset(), {}, {})


def with_predictions(snapshot: Snapshot, now: float) -> Snapshot:
    """Return the snapshot with predictions. Without a tenant that uses them it is the same object."""
    if not settings.ENV.predictions or not (snapshot.jobs or snapshot.running):
        return snapshot
    learned = load_learned()
    if not learned.tenants:
        return snapshot
    running = [job for job in snapshot.running if job.tenant_id in learned.tenants]
    waiting = [job for job in snapshot.jobs if job.tenant_id in learned.tenants and job.predicted_seconds is None]
    keys = _load_keys({public_id(job.id) for job in waiting} | {job.job_id for job in running})
    predictor = Predictor(learned.summaries, learned.trackers)
    siblings: dict[str, float] = {}
    for entry in running:
        if entry.job_id in keys:
            template = keys[entry.job_id][1]
            siblings[template] = min(entry.started_at, siblings.get(template, entry.started_at))
    predicted = {job.id: job for job in _predicted(waiting, keys, siblings, predictor, learned.version, now)}
    ends = _with_ends(running, keys, predictor, learned.version, now)
    return replace(
        snapshot,
        jobs=tuple([predicted.get(job.id, job) for job in snapshot.jobs]),
        running=tuple([ends.get(entry.job_id, entry) for entry in snapshot.running]),
    )


def load_learned() -> Learned:
    """Return what was learned; rows that have not changed since the last call are not read again."""
    progress = prepared_rows("SELECT version FROM scheduling_learningprogress")
    version = progress[0][0] if progress else 0
    last = _learned.last(None, _NOTHING)
    if last.version == version:
        return last
    if last.version > version:  # the database was restored
        last = _NOTHING
    tenants = frozenset(id for (id,) in rows("SELECT tenant_id FROM scheduling_tenantprediction WHERE is_on"))
    if not tenants:
        return _learned.put(None, Learned(version, tenants, {}, {}))
    # Ends that were learned while no tenant used predictions were not read.
    since = last.version if last.tenants else 0
    changed = rows(
        "SELECT key, at, count, weight, median, spread FROM scheduling_runhistory"
        " WHERE version > %s AND key !~ '^(gpu|host)/'",
        [since],
    )
    summaries = dict(last.summaries) | {key: Summary(*summary) for key, *summary in changed}
    trackers = {
        (tenant_id, group): Tracker(low, high, count)
        for tenant_id, group, low, high, count in rows(
            'SELECT tenant_id, "group", low, high, count FROM scheduling_rangetracker'
        )
    }
    return _learned.put(None, Learned(version, tenants, summaries, trackers))


_KINDS = """
    SELECT j.id, j.tenant_id, j.user_id, j.gpu_count, j.gpu_models,
           json_build_object('command', p->'command', 'args', p->'args', 'script', p->'script')::text
      FROM jobs_all j LEFT JOIN jobs_all w ON w.id = j.array_id, LATERAL coalesce(w.payload, j.payload) AS p
     WHERE j.id = ANY(%s::bigint[])
"""


def kinds_of(job_ids: Collection[int]) -> dict[int, JobKind]:
    """Return the kind of each of these jobs that exists."""
    return {
        job_id: JobKind.of(tenant_id, user_id, command_of(msgspec.json.decode(payload)), gpus, models)
        for job_id, tenant_id, user_id, gpus, models, payload in rows(_KINDS, [sorted(job_ids)])
    }


def _load_keys(job_ids: set[int]) -> dict[int, Keys]:
    """Return the keys of these jobs; a job's command never changes, so each is read once."""
    cached: dict[int, Keys] = _keys.last(None, {})
    keys = {job_id: cached[job_id] for job_id in job_ids if job_id in cached}
    if missing := job_ids - keys.keys():
        keys |= {job_id: keys_of(kind) for job_id, kind in kinds_of(missing).items()}
    return _keys.put(None, keys)


def _predicted(
    jobs: Sequence[Job],
    keys: dict[int, Keys],
    siblings: dict[str, float],
    predictor: Predictor,
    version: int,
    now: float,
) -> list[Job]:
    """Return the jobs with predictions; those whose basis is unchanged are the same objects as last time."""
    previous: dict[int, _Waiting] = _waiting.last(None, {})
    period = int(now / REFRESH_SECONDS)
    entries: dict[int, _Waiting] = {}
    for job in jobs:
        job_keys = keys.get(public_id(job.id))
        if job_keys is None:
            continue
        started_at = siblings.get(job_keys[1])
        basis, last = (version, period, started_at), previous.get(job.id)
        if last is not None and last.job is job and last.basis == basis:
            entries[job.id] = last
            continue
        age = now - started_at if started_at is not None else 0.0
        seconds = predictor.order_seconds(job_keys, now, job.max_runtime_seconds, age)
        if last is not None and last.job is job and last.predicted.predicted_seconds == _rounded(seconds):
            entries[job.id] = last._replace(basis=basis)
        else:
            entries[job.id] = _Waiting(job, basis, replace(job, predicted_seconds=_rounded(seconds)))
    _waiting.put(None, entries)
    return [entry.predicted for entry in entries.values()]


def _rounded(seconds: float | None) -> float | None:
    """Round to two digits, so that a prediction that hardly changes leaves the queue as it is."""
    return None if seconds is None else float(f"{seconds:.2g}")


def _with_ends(
    running: Sequence[RunningJob], keys: dict[int, Keys], predictor: Predictor, version: int, now: float
) -> dict[int, RunningJob]:
    """Return by id the running jobs that have a predicted end."""
    previous: dict[int, _Running] = _running.last(None, {})
    entries: dict[int, _Running] = {}
    for job in running:
        basis = (version, int(now / REFRESH_END_SECONDS), job.started_at, job.ends_by)
        last = previous.get(job.job_id)
        if last is None or last.basis != basis:
            last = _Running(basis, _predicted_end(job, keys.get(job.job_id), predictor, now))
        entries[job.job_id] = last
    _running.put(None, entries)
    return {
        job.job_id: replace(job, predicted_end_at=end_at)
        for job in running
        if not job.is_stopping and (end_at := entries[job.job_id].end_at) is not None
    }


def _predicted_end(job: RunningJob, keys: Keys | None, predictor: Predictor, now: float) -> float | None:
    if keys is None:
        return None
    limit = None if job.ends_by is None else job.ends_by - job.started_at
    seconds = predictor.end_seconds(keys, job.tenant_id, now, max(now - job.started_at, 0.0), limit)
    return None if seconds is None else job.started_at + seconds


def order_seconds(kind: JobKind, now: float, limit_seconds: float | None) -> float | None:
    """Return the run time by which the scheduler would order a job of this kind; None if it uses no prediction."""
    if not settings.ENV.predictions:
        return None
    learned = load_learned()
    if kind.tenant_id not in learned.tenants:
        return None
    predictor = Predictor(learned.summaries, learned.trackers)
    return _rounded(predictor.order_seconds(keys_of(kind), now, limit_seconds))


def is_on(tenant_id: int) -> bool:
    """Return whether the scheduler uses the predictions of a tenant."""
    result: list[tuple[Any, ...]] = rows(
        "SELECT 1 FROM scheduling_tenantprediction WHERE tenant_id = %s AND is_on", [tenant_id]
    )
    return settings.ENV.predictions and bool(result)
