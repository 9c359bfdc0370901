"""The tables of this app as other apps read them in SQL."""

from gpusched.lib.db.views import published
from jobs.listing.counts import WAITS, WEIGHT
from jobs.models import Attempt, Job, JobEvent, JobReason

VIEWS = {
    # `row_version` changes with each write of the row; of an array `weight` is the number of its waiting elements.
    "jobs_all": published(
        Job,
        without=("array_waiting", "array_cancelled"),
        also={
            "row_version": "t.xmin::text::bigint",
            "is_waiting": WAITS.replace("j.", "t."),
            "weight": WEIGHT.replace("j.", "t."),
            "elements_waiting": "jobs_numbers(t.array_waiting)",
            "elements_cancelled": "jobs_numbers(t.array_cancelled)",
        },
    ),
    "jobs_attempts": published(Attempt, also={"row_version": "t.xmin::text::bigint"}),
    "jobs_events": published(JobEvent),
    "jobs_reason_periods": published(JobReason),
}
