"""The offered actions of a job, those of the page's script, and the effects of the actions agree."""

from typing import Any

import pytest

from frontend import shared_constants
from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import execute, query
from gpusched.protocol import job_actions
from gpusched.protocol.reasons import EndReason, Pending
from gpusched.protocol.rest.time_limits import Extension
from gpusched.protocol.states import FINAL, LIVE, JobState
from jobs.actions import job_actions as actions
from jobs.models import Job
from scheduling.whatif import extend
from tenants.auth.identity import Identity
from tests.factories import identity_for, make_node, make_user, run_cycle, submit
from tests.jobs.arrays import submit_array

pytestmark = pytest.mark.django_db(transaction=True)
CASES = [
    *((state, reason) for state in JobState for reason in ("",) if state not in (JobState.HELD, JobState.STOPPING)),
    *((JobState.HELD, reason) for reason in (Pending.HELD_BY_USER, Pending.HELD_BY_ADMIN)),
    *((JobState.STOPPING, reason) for reason in (EndReason.CANCELLED, EndReason.REQUEUED)),
]


def test_script_has_the_constants_of_the_server() -> None:
    assert shared_constants.FILE.read_text() == shared_constants.text(), (
        "run make rules, and commit frontend/src/ui/constants.ts"
    )


def set_state(job_id: int, state: str, reason: str) -> None:
    stop = reason if state == JobState.STOPPING else ""
    sql = "UPDATE jobs_job SET state = %s, reason = %s, stop_reason = %s, ended_at = %s, attempt = %s WHERE id = %s"
    is_array = Job.objects.get(pk=job_id).array_count is not None
    ended_at = "2026-01-01T00:00:00Z" if state in FINAL else None
    execute(sql, [state, "" if stop else reason, stop, ended_at, int(state in LIVE and not is_array), job_id])


def perform(verb: str, job_id: int, identity: Identity) -> str:
    """Perform an action. Return the detail of its refusal, or an empty string."""
    try:
        if verb == "extend":
            extend.extend(job_id, Extension(max_runtime_minutes=90.0), identity, is_dry_run=False)
        else:
            getattr(actions, verb)(job_id, identity)
    except Problem as problem:
        return problem.detail
    return ""


def columns_of(job_id: int) -> list[dict[str, Any]]:
    return query("SELECT state, stop_reason, max_runtime_seconds FROM jobs_job WHERE id = %s", [job_id])


# An array is never placed itself, and is stopping only while elements are.
NO_ARRAY = (JobState.SCHEDULED, JobState.STOPPING)


@pytest.mark.parametrize(
    ("state", "reason", "is_array"),
    [(*case, is_array) for case in CASES for is_array in (False, True) if not is_array or case[0] not in NO_ARRAY],
)
def test_exactly_the_offered_actions_change_a_job(
    state: JobState, reason: str, is_array: bool, user: Any, tenant: Any
) -> None:
    node = make_node()
    admin = [identity_for(make_user(admin=True))] if reason == Pending.HELD_BY_ADMIN else []
    for identity in (identity_for(user), *admin):
        offered = job_actions.allowed_actions(state, reason, is_array=is_array, is_admin=identity.is_admin)
        for verb in job_actions.STATES:
            job_id = submit_array(user, tenant, 3) if is_array else submit(user, tenant, max_runtime_minutes=60)
            if is_array and state == JobState.FAILED:
                run_cycle()
                node.end(*node.start_all(), exit_code=1)
                run_cycle()
            set_state(job_id, state, reason)
            previous = columns_of(job_id)
            refused = perform(verb, job_id, identity)
            assert (columns_of(job_id) != previous) == (verb in offered), (verb, refused)
            assert not refused or verb not in offered
