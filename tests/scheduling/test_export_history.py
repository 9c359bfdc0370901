"""One's own history can be exported and replayed under another policy or quota."""

import json
from datetime import UTC, datetime, timedelta
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from jobs.models import Attempt, Job
from scheduling.simulator.traces.formats import read_trace
from tests.factories import submit

pytestmark = pytest.mark.django_db(transaction=True)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def ran(user, tenant, submitted_at, *attempts, **fields) -> int:
    """A job as it looks when it has ended; `attempts`: hours of start and end of each, after its submission."""
    job_id = submit(user, tenant, **fields)
    ends = [submitted_at + end * HOUR for _, end in attempts]
    Job.objects.filter(pk=job_id).update(
        state="completed", submitted_at=submitted_at, ended_at=max(ends, default=submitted_at), attempt=len(attempts)
    )
    for number, (start, end) in enumerate(attempts, 1):
        times = [submitted_at + hours * HOUR for hours in (start, end)]
        Attempt.objects.create(
            job_id=job_id,
            number=number,
            scheduled_at=times[0],
            started_at=times[0],
            ended_at=times[1],
            reason="completed",
        )
    return job_id


def exported(*arguments: str) -> tuple[str, str]:
    out, notes = StringIO(), StringIO()
    call_command("export_history", *arguments, stdout=out, stderr=notes)
    return out.getvalue(), notes.getvalue()


def test_exported_jobs_replay_under_another_quota(user, tenant, tmp_path):
    first = ran(user, tenant, NOON, (0.5, 1), (2, 4.5), gpu_count=4, priority=700, max_runtime_minutes=120)
    second = ran(user, tenant, NOON + HOUR, (0, 1), gpu_count=4)
    ran(user, tenant, NOON)  # cancelled before it started
    submit(user, tenant, gpu_count=1)
    file = tmp_path / "history.csv"
    _, notes = exported(str(file))
    assert notes.strip() == "2 jobs written; 2 left out, as they have not ended, or never started."
    row, other = read_trace(file, "csv")
    assert (row.name, row.gpus, row.run_seconds, row.priority, row.limit_seconds) == (str(first), 4, 10_800, 700, 7200)
    assert (other.name, other.tenant, other.user, other.limit_seconds) == (str(second), "nlp", user.username, None)
    assert other.submitted_at - row.submitted_at == 3600
    out = StringIO()
    call_command("simulate", "jobs", str(file), "--nodes", "1", "--quota", "nlp=4", "--json", stdout=out)
    assert json.loads(out.getvalue().splitlines()[-1])["queue_hours"]["max"] == 2.0


def test_part_of_the_history_goes_to_standard_output(user, tenant):
    for day in range(4):
        ran(user, tenant, NOON + day * 24 * HOUR, (0, 1), gpu_count=1)
    out, _ = exported("-", "--since", "2026-03-02", "--until", "2026-03-03T12:00Z")
    assert [line.split(",")[1] for line in out.splitlines()] == ["submitted_at", "2026-03-02T12:00:00Z"]


def test_unreadable_options_and_unwritable_files_are_reported(tmp_path):
    with pytest.raises(CommandError, match=r"--since: 'monday' is not a date"):
        exported("-", "--since", "monday")
    with pytest.raises(CommandError, match=r"nowhere/x\.csv: No such file or directory\."):
        exported(str(tmp_path / "nowhere" / "x.csv"))
