"""Predictions as people see them: a range, and the runs that it comes from, none of them of another tenant."""

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from django.conf import settings

from gpusched.lib.db.sql import query, rows
from gpusched.protocol.states import JobState
from gpusched.protocol.times import format_range
from scheduling.history.commands import command_of
from scheduling.history.current import is_on
from scheduling.prediction.ends import Summary
from scheduling.prediction.keys import TENANT_KEYS, JobKind, keys_of
from scheduling.prediction.predictor import Prediction, Predictor, given_elapsed
from scheduling.prediction.ranges import Tracker
from scheduling.prediction.templates import label_of

# A prediction from fewer runs is no better than a guess.
MIN_RUNS = 2


class _Subject(NamedTuple):
    """The job that is predicted. `owner`: "your" or "alice's"."""

    kind: JobKind
    label: str
    owner: str
    limit_seconds: float | None
    elapsed: float = 0.0


_JOB = """
    SELECT j.tenant_id, j.user_id, j.gpu_count, j.gpu_models, j.max_runtime_seconds, j.state, u.username,
           coalesce(w.payload, j.payload) AS payload,
           greatest(extract(epoch FROM now() - j.started_at)::float8, 0) AS elapsed
      FROM jobs_all j JOIN tenants_people u ON u.id = j.user_id LEFT JOIN jobs_all w ON w.id = j.array_id
     WHERE j.id = %s AND j.state = ANY(%s)
"""
_UNFINISHED = [JobState.PENDING, JobState.HELD, JobState.SCHEDULED, JobState.RUNNING]


def predicted_of_job(job_id: int, viewer_id: int | None) -> dict[str, Any] | None:
    """Return the predicted run time of a job that waits or runs. None for other jobs, and without enough runs."""
    if not settings.ENV.predictions:
        return None
    jobs = query(_JOB, [job_id, _UNFINISHED])
    if not jobs:
        return None
    [job] = jobs
    command = command_of(job["payload"])
    kind = JobKind.of(job["tenant_id"], job["user_id"], command, job["gpu_count"], job["gpu_models"])
    owner = "your" if job["user_id"] == viewer_id else f"{job['username']}'s"
    elapsed = job["elapsed"] if job["state"] == JobState.RUNNING else 0.0
    return _present(_Subject(kind, label_of(command), owner, job["max_runtime_seconds"], elapsed or 0.0))


def predicted_of_row(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return the predicted run time of a job that its submitter has not submitted yet, from its columns."""
    if not settings.ENV.predictions:
        return None
    command = command_of(row["payload"])
    return _present(_Subject(kind_of_row(row), label_of(command), "your", row["max_runtime_seconds"]))


def kind_of_row(row: dict[str, Any]) -> JobKind:
    """Return the kind of a job that has no row yet."""
    return JobKind.of(row["tenant_id"], row["user_id"], command_of(row["payload"]), row["gpu_count"], row["gpu_models"])


def _present(subject: _Subject) -> dict[str, Any] | None:
    keys = keys_of(subject.kind)[:TENANT_KEYS]
    prediction = _predictor(keys, subject.kind.tenant_id).predict(subject.kind, time.time(), subject.limit_seconds)
    if prediction is None or prediction.end_count < MIN_RUNS:
        return None
    prediction = given_elapsed(prediction, subject.elapsed, subject.limit_seconds)
    return {
        "p10": round(prediction.p10, 1),
        "p50": round(prediction.p50, 1),
        "p90": round(prediction.p90, 1),
        "n": prediction.end_count,
        "source": _source(subject, prediction),
        "is_used": is_on(subject.kind.tenant_id),
    }


def _source(subject: _Subject, prediction: Prediction) -> str:
    """Return the sentence that names the runs. It never names a user or runs of another tenant."""
    gpus = f"{subject.kind.gpus} GPU{'' if subject.kind.gpus == 1 else 's'}" if subject.kind.gpus else "no GPU"
    runs = f"last {prediction.end_count} runs"
    of = (
        f"{subject.owner} {runs} of {subject.label}",
        f"{subject.owner} {runs} of {subject.label}",
        f"{subject.owner} {runs} with {gpus}",
        f"the tenant's {runs} with {gpus}",
    )[prediction.level]
    return f"median of {of}: {format_range(prediction.p10, prediction.p90)}"


def _predictor(keys: Sequence[str], tenant_id: int) -> Predictor:
    """Return a predictor that knows these keys alone."""
    summaries = {
        key: Summary(*summary)
        for key, *summary in rows(
            "SELECT key, at, count, weight, median, spread FROM scheduling_runhistory WHERE key = ANY(%s)",
            [list(keys)],
        )
    }
    trackers = {
        (tenant_id, group): Tracker(low, high, count)
        for group, low, high, count in rows(
            'SELECT "group", low, high, count FROM scheduling_rangetracker WHERE tenant_id = %s', [tenant_id]
        )
    }
    return Predictor(summaries, trackers)
