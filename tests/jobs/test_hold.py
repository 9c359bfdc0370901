"""Holds by users and by admins, and their release."""

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.arrays import ArrayRequest
from jobs.actions import job_actions
from tests.factories import identity_for, make_user, submit

pytestmark = pytest.mark.django_db


def state_and_reason(job):
    [row] = query("SELECT state, reason FROM jobs_job WHERE id = %s", [job])
    return row["state"], row["reason"]


@pytest.mark.parametrize("array", [None, ArrayRequest(count=3)], ids=["a job", "an array"])
def test_admin_hold_replaces_the_owners_hold(user, tenant, identity, array):
    """Otherwise the owner could release a job that an admin wants to keep from starting."""
    root = identity_for(make_user("root", admin=True))
    job = submit(user, tenant, array=array)
    job_actions.hold(job, identity)
    assert state_and_reason(job) == ("held", "held_by_user")
    job_actions.hold(job, root)
    assert state_and_reason(job) == ("held", "held_by_admin")
    job_actions.hold(job, identity)
    job_actions.hold(job, root)
    assert state_and_reason(job) == ("held", "held_by_admin")
    with pytest.raises(Problem, match="an admin holds this job"):
        job_actions.release(job, identity)
    job_actions.release(job, root)
    assert state_and_reason(job)[0] == "pending"
    events = query("SELECT actor FROM jobs_jobevent WHERE job_id = %s AND kind = 'held' ORDER BY id", [job])
    assert [row["actor"] for row in events] == [user.username, "root"]
