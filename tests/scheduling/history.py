"""Attempts that have ended, for tests of predictions: rows and events as the services write them."""

from datetime import datetime, timedelta
from itertools import count

from django.utils import timezone

from jobs.events.log import frontier
from jobs.models import Attempt, Job, JobEvent
from tests.factories import submit
from tests.waiting import wait_for

_minutes = count(1)


def ran(
    user,
    tenant,
    seconds,
    command=("python", "train.py"),
    reason="exited",
    exit_code=0,
    first_at: datetime | None = None,
):
    """Submit a job for each number of seconds that ran so long, one after the other. Return their ids."""
    ids = []
    for number in seconds:
        job_id = submit(user, tenant, command=list(command))
        ended_at = (first_at or timezone.now() - timedelta(days=1)) + timedelta(minutes=next(_minutes))
        started_at = ended_at - timedelta(seconds=number)
        Attempt.objects.create(
            job_id=job_id, number=1, scheduled_at=started_at, started_at=started_at, ended_at=ended_at, reason=reason,
            exit_code=exit_code,
        )  # fmt: skip
        is_clean = exit_code == 0
        Job.objects.filter(id=job_id).update(
            state="completed" if is_clean else "failed", attempt=1, ended_at=ended_at, started_at=started_at
        )
        JobEvent.objects.create(job_id=job_id, at=ended_at, kind="ended", attempt=1, data={"reason": reason})
        ids.append(job_id)
    newest = JobEvent.objects.order_by("-id").values_list("id", flat=True)[0]
    wait_for(lambda: frontier.advance() >= newest, 10, "all events to be settled")  # autovacuum locks them briefly
    return ids
