"""The reservation that a job insists on."""

from gpusched.lib.bus import events
from gpusched.lib.db.sql import query
from jobs.lifecycle.array_states import UNFINISHED

_LEAVE = f"""
    UPDATE jobs_job SET reservation = NULL
     WHERE reservation = %s AND state IN {UNFINISHED}
       AND (attempt > 0 OR %s) RETURNING id
"""


def leave_reservation(reservation_id: int, *, with_waiting: bool) -> list[int]:
    """Let unfinished jobs that insist on a reservation, which has ended, start anywhere. Return their ids.

    `with_waiting`: also those that have never started. Without it they keep waiting, as only their submitter can know
    whether the work makes sense elsewhere.
    """
    job_ids = [row["id"] for row in query(_LEAVE, [reservation_id, with_waiting])]
    events.changed("jobs", job_ids)
    return job_ids
