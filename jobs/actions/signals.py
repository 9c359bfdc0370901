"""Send a signal to the processes of a running job: record it as an event, and wake its agents."""

from django.db import transaction

from gpusched.lib.api.problems import Problem
from gpusched.lib.bus import events
from gpusched.lib.db.sql import as_json, execute
from gpusched.protocol.signals import SignalName
from gpusched.protocol.states import JobState
from jobs.actions import array_actions, job_actions
from jobs.events.record import insert_sql
from tenants.auth.identity import Identity

# Agents read the order from the event, and the audit has it. Signals of an attempt have numbers from 1.
_SENT = insert_sql(
    "'signal_sent'", "counted", actor="%s", data="%s::jsonb || jsonb_build_object('sequence', signal_count)"
)
_SEND = f"""
    WITH counted AS (
        UPDATE jobs_job SET signal_count = signal_count + 1 WHERE id = %s AND state = 'running'
        RETURNING id, attempt, signal_count)
    {_SENT}
"""


def send(job_id: int, name: SignalName, identity: Identity) -> str:
    """Order a signal, sent once to the first process of each running rank, for a caller who may cancel the job. 409 for
    a job that is not running, and for an array, whose elements run instead."""
    with transaction.atomic():
        job = job_actions.lock(job_id, identity)
        array_actions.require_no_array(job_id, job, "signal its elements by their own ids")
        if job["state"] != JobState.RUNNING:
            message = f"only a running job has processes to signal; job {job_id} is {job['state']}"
            raise Problem(409, "wrong_state", message, next_step="see its state")
        execute(_SEND, [job_id, identity.username, as_json({"signal": name})])
        events.changed("jobs", [job_id])
        events.changed("stops", [job_id])
    return f"job {job_id} is sent {name}"
