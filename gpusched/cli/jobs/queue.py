"""The commands for the queue, events, the history of ended jobs, fair shares, and waiting for jobs."""

import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages, output, screen
from gpusched.cli.terminal.group import for_each
from gpusched.cli.terminal.output import Column, Format, age
from gpusched.cli.terminal.session import connect
from gpusched.protocol.states import FINAL

if TYPE_CHECKING:
    from gpusched.client import Client, Job
    from gpusched.protocol.rest.cluster import Share
    from gpusched.protocol.rest.events import Event, JobEvent
    from gpusched.protocol.rest.scheduling import QueueItem

Watch = Annotated[bool, typer.Option("--watch", help="Refresh every two seconds; q or Ctrl-C quits.")]

_QUEUE: "tuple[Column[QueueItem], ...]" = (
    Column("POSITION", lambda item: item.position),
    Column("ID", lambda item: item.job_id),
    Column("NAME", lambda item: item.name),
    Column("TENANT", lambda item: item.tenant),
    Column("USER", lambda item: item.user),
    Column("GPUS", lambda item: item.gpu_count),
    Column("AHEAD", lambda item: item.gpus_ahead),
    Column("PRIORITY", lambda item: item.priority),
    Column("AGE", lambda item: age(item.submitted_at)),
    Column("STARTS", lambda item: item.estimate.p50_at if item.estimate else None, is_wide=True),
    Column("WHY", lambda item: item.reason.sentence if item.reason else None),
)


_USAGE: "tuple[Column[_Usage], ...]" = (
    Column("TENANT", lambda row: row.tenant),
    Column("USER", lambda row: row.user),
    Column("QUEUED", lambda row: f"{row.queued_jobs} of {row.max_queued_jobs}"),
    Column("DEFERRED", lambda row: f"{row.deferred_jobs} of {row.max_deferred_jobs}"),
)


@dataclass(frozen=True)
class _Usage:
    """A tenant, or one of its users, with its waiting jobs and the limits."""

    tenant: str
    user: str | None
    queued_jobs: int
    max_queued_jobs: int
    deferred_jobs: int
    max_deferred_jobs: int


def _usage(client: "Client") -> list[_Usage]:
    rows = []
    for tenant in client.queue_usage():
        counts = (tenant.queued_jobs, tenant.max_queued_jobs, tenant.deferred_jobs, tenant.max_deferred_jobs)
        rows.append(_Usage(tenant.tenant, None, *counts))
        for user in tenant.users:
            limits = (tenant.max_queued_jobs_per_user, tenant.max_deferred_jobs_per_user)
            rows.append(_Usage(tenant.tenant, user.user, user.queued_jobs, limits[0], user.deferred_jobs, limits[1]))
    return rows


def queue(
    ctx: typer.Context,
    form: output.OutputOption = Format.TABLE,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="Maximum number of rows, in queue order.")] = 200,
    watch: Watch = False,
    usage: Annotated[bool, typer.Option("--usage", help="Count waiting jobs by tenant and user.")] = False,
) -> None:
    """List waiting jobs in scheduling order; AHEAD counts the GPUs that earlier jobs request.

    \b
    gpusched queue
    gpusched queue --watch
    gpusched queue -o json | jq '.[].estimate'
    gpusched queue --usage

    -o wide adds each job's probable start. --usage counts jobs that could start and jobs that cannot start yet
    (deferred: held, before their time, or waiting for other jobs), with the limits.
    """

    def fetch() -> "Sequence[QueueItem]":
        return output.at_most(limit, client.queue(limit=limit + 1), has_note=not watch)

    with connect(ctx) as client:
        if usage:
            screen.items(lambda: _usage(client), _USAGE, form, lambda row: row.tenant, is_watching=watch)
            return
        screen.items(fetch, _QUEUE, form, lambda item: item.job_id, is_watching=watch)


_ENDED: "tuple[Column[Job], ...]" = (
    Column("ID", lambda job: job.id),
    Column("NAME", lambda job: job.name),
    Column("TENANT", lambda job: job.tenant),
    Column("USER", lambda job: job.user),
    Column("STATE", lambda job: job.state, is_state=True),
    Column("GPUS", lambda job: job.gpu_count),
    Column("SUBMITTED", lambda job: job.submitted_at, is_wide=True),
    Column("STARTED", lambda job: job.started_at, is_wide=True),
    Column("ENDED", lambda job: job.ended_at),
    Column("RAN", lambda job: age(job.started_at, job.ended_at)),
    Column("ATTEMPTS", lambda job: job.attempt, is_wide=True),
    Column("EXIT", lambda job: job.exit_code),
    Column("WHY", lambda job: job.reason.sentence if job.reason else None),
)
_EVENTS: "tuple[Column[Event], ...]" = (
    Column("AT", lambda event: event.at),
    Column("WHAT", lambda event: event.kind),
    Column("ATTEMPT", lambda event: event.attempt),
    Column("BY", lambda event: event.actor),
    Column("VIA", lambda event: event.via),
    Column("DETAILS", lambda event: json.dumps(event.data) if event.data else None),
)


def history(
    ctx: typer.Context,
    job_id: Annotated[int | None, typer.Argument(metavar="[ID]", min=1, show_default=False)] = None,
    form: output.OutputOption = Format.TABLE,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only of this tenant.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only of this user.")] = None,
    since: Annotated[str | None, typer.Option(help="Ended on this day or at this time (UTC), or later.")] = None,
    until: Annotated[str | None, typer.Option(help="Ended before this day or time (UTC).")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="Maximum number of rows, newest first.")] = 50,
) -> None:
    """List ended jobs; of one job, all its events.

    \b
    gpusched history --user ada
    gpusched history --since 2030-01-01 --until 2030-02-01
    gpusched history -o csv --limit 1000 > jobs.csv
    gpusched history 42
    """
    with connect(ctx) as client:
        if job_id is not None:
            output.items(client.history(job_id), _EVENTS, form, lambda event: event.kind)
            return
        jobs = client.list(
            tenant=tenant, user=user, state=sorted(FINAL), ended_after=since, ended_before=until, limit=limit + 1
        )
    output.items(output.at_most(limit, jobs), _ENDED, form, lambda job: job.id)


def events(
    ctx: typer.Context,
    form: output.OutputOption = Format.TABLE,
    since: Annotated[int | None, typer.Option(min=0, metavar="ID", help="After this event; 0: all. [now]")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only of this tenant.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only these kinds, such as started,ended.")] = None,
    once: Annotated[bool, typer.Option("--once", help="Print the existing events, then exit.")] = False,
) -> None:
    """Print events of jobs as they happen; each line begins with the id from which --since continues.

    \b
    gpusched events
    gpusched events --since 0 --once -o jsonl > events.jsonl
    gpusched events --kind ended -o name | xargs -n 1 gpusched history
    """
    if form in (Format.JSON, Format.CSV) and not once:
        raise typer.BadParameter(f"{form} needs an end: use jsonl, or --once", param_hint="--output")
    with connect(ctx) as client:
        stream = client.events(since, tenant=tenant, kind=kind, follow=not once)
        if once:
            output.items(list(stream), _HAPPENING, form, lambda event: event.job_id)
            return
        for event in stream:
            if form in (Format.TABLE, Format.WIDE):
                print(_line(event), flush=True)
            else:
                output.items([event], _HAPPENING, form, lambda event: event.job_id)


_HAPPENING: "tuple[Column[JobEvent], ...]" = (
    Column("ID", lambda event: event.id),
    Column("AT", lambda event: event.at),
    Column("JOB", lambda event: event.job_id),
    Column("NAME", lambda event: event.name),
    Column("TENANT", lambda event: event.tenant),
    Column("WHAT", lambda event: event.kind),
    Column("ATTEMPT", lambda event: event.attempt),
    Column("BY", lambda event: event.actor),
    Column("VIA", lambda event: event.via, is_wide=True),
    Column("DETAILS", lambda event: json.dumps(event.data) if event.data else None, is_wide=True),
)


def _line(event: "JobEvent") -> str:
    by = f" by {event.actor}" if event.actor else ""
    text = f"{event.id}  {event.at:%H:%M:%S}  {event.tenant}  job {event.job_id} {event.name}: {event.kind}{by}"
    return messages.printable(text.replace("\n", " "))


_SHARES: "tuple[Column[Share], ...]" = (
    Column("TENANT", lambda share: share.tenant),
    Column("SHARE", lambda share: round(share.share, 2)),
    Column("HELD", lambda share: share.gpus_held),
    Column("JOBS", lambda share: share.jobs_live),
    Column("GUARANTEED", lambda share: share.guaranteed_gpus),
    Column("LIMIT", lambda share: share.max_gpus),
    Column("USED GPU-HOURS", lambda share: round(share.usage_gpu_hours, 1)),
    Column("WEIGHT", lambda share: share.weight),
    Column("IN FORCE", lambda share: round(share.effective_weight, 3)),
    Column("BECAUSE", lambda share: share.weight_reason),
)


def share(ctx: typer.Context, form: output.OutputOption = Format.TABLE) -> None:
    """Show the allocated and used share of each of your tenants, by weight: the lowest share is scheduled first.

    \b
    gpusched share
    gpusched share -o csv
    """
    with connect(ctx) as client:
        output.items(client.shares(), _SHARES, form, lambda share: share.tenant)


def wait(
    ctx: typer.Context,
    job_ids: Annotated[list[int], typer.Argument(metavar="ID...", min=1, show_default=False)],
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Total time to wait for all jobs.")
    ] = None,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Wait until jobs have ended. Exits with 0 if all completed, 1 if not, 7 on a timeout.

    \b
    gpusched wait 42
    gpusched wait --timeout 3600 $(gpusched submit -- true)

    With -o the ended jobs are printed, even if the timeout ends the wait for others.
    """
    if timeout is not None and math.isnan(timeout):
        raise typer.BadParameter("nan is not a number of seconds", param_hint="--timeout")
    ended: list[Job] = []
    until = time.monotonic() + (timeout or 0.0)
    with connect(ctx) as client:

        def attend(job_id: int) -> None:
            ended.append(client.wait(job_id, None if timeout is None else max(0.0, until - time.monotonic())))

        try:
            for_each(job_ids, attend)
        finally:
            _print_ended(ended, form)
    if any(job.state != "completed" for job in ended):
        raise typer.Exit(1)


def _print_ended(ended: "list[Job]", form: Format) -> None:
    for job in ended:
        reason = f": {job.reason.sentence}" if job.reason and job.reason.sentence else ""
        messages.note(f"job {job.id} {job.state}{reason}")
    if form is not Format.TABLE:
        output.items(ended, _ENDED, form, lambda job: job.id)
