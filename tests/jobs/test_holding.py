"""Who holds a job, and who may release it."""

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.arrays import ArrayRequest
from jobs.actions import job_actions
from tests.factories import identity_for, make_user, submit

pytestmark = pytest.mark.django_db


def held_by(job):
    [row] = query("SELECT state, reason FROM jobs_job WHERE id = %s", [job])
    return row["state"], row["reason"]


@pytest.mark.parametrize("array", [None, ArrayRequest(count=3)], ids=["a job", "an array"])
def test_an_admins_hold_takes_the_place_of_its_owners(user, tenant, who, array):
    """Else the owner would release what an admin wanted to keep from starting."""
    root = identity_for(make_user("root", admin=True))
    job = submit(user, tenant, array=array)
    job_actions.hold(job, who)
    assert held_by(job) == ("held", "held_by_user")
    job_actions.hold(job, root)
    assert held_by(job) == ("held", "held_by_admin")
    job_actions.hold(job, who)
    job_actions.hold(job, root)
    assert held_by(job) == ("held", "held_by_admin")
    with pytest.raises(Problem, match="an admin holds this job"):
        job_actions.release(job, who)
    job_actions.release(job, root)
    assert held_by(job)[0] == "pending"
    told = query("SELECT actor FROM jobs_jobevent WHERE job_id = %s AND kind = 'held' ORDER BY id", [job])
    assert [row["actor"] for row in told] == [user.username, "root"]
