"""The command `extend`: change the time limit of a job, or preview the change."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.jobs.jobs import JobId
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.output import Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.time_limits import Extended


def extend(
    ctx: typer.Context,
    job_id: JobId,
    by: Annotated[float | None, typer.Option(help="Change in minutes (negative: shorter).", show_default=False)] = None,
    to: Annotated[
        float | None, typer.Option(help="New limit in minutes, from the job's start.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even if it delays a job's promised start (admins).")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Preview the effect; change nothing.")] = False,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Change the time limit of a waiting or running job.

    \b
    gpusched extend 42 --by 60
    gpusched extend 42 --to 1440 --dry-run

    --by is the change (negative: shorter), --to the new limit, both in minutes. The command lists the waiting jobs that
    start later; --dry-run only lists them. Members can extend their own running jobs by as much as the policy allows.
    """
    if (by is None) == (to is None):
        raise typer.BadParameter("give exactly one of them", param_hint="--by or --to")
    with connect(ctx) as client:
        result = client.extend(job_id, add_minutes=by, max_runtime_minutes=to, force=force, dry_run=dry_run)
    messages.note(result.message)
    output.one(result, form, text=_delays(result), name=result.job_id)


def _delays(result: "Extended") -> str:
    """Return a line for each waiting job that starts later; empty if none does."""
    lines = [
        f"job {delay.job_id} starts by {delay.p90_at:%Y-%m-%d %H:%M} UTC, not {delay.was_p90_at:%Y-%m-%d %H:%M}"
        if delay.p90_at
        else f"job {delay.job_id} no longer has an estimate; it was {delay.was_p90_at:%Y-%m-%d %H:%M} UTC"
        for delay in result.delays
    ]
    if result.others_delayed:
        lines.append(f"and {result.others_delayed} of other tenants")
    return "\n".join(lines)
