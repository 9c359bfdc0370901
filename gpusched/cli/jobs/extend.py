"""The command that changes the time limit of a job, or says what that would do."""

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
    by: Annotated[float | None, typer.Option(help="Minutes more (less than 0: fewer).", show_default=False)] = None,
    to: Annotated[float | None, typer.Option(help="Minutes in all, from its start.", show_default=False)] = None,
    force: Annotated[bool, typer.Option("--force", help="Also past what a waiting job is promised (admins).")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would follow; change nothing.")] = False,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Change the time limit of a job that waits or runs.

    \b
    gpusched extend 42 --by 60
    gpusched extend 42 --to 1440 --dry-run

    --by is by how much it changes (less than 0: shorter), --to the new limit, both in minutes. It says which waiting
    jobs start later by it; --dry-run only says so. Members may extend their own running jobs by as much as the policy
    allows.
    """
    if (by is None) == (to is None):
        raise typer.BadParameter("give one of them", param_hint="--by or --to")
    with connect(ctx) as client:
        told = client.extend(job_id, add_minutes=by, max_runtime_minutes=to, force=force, dry_run=dry_run)
    messages.note(told.message)
    output.one(told, form, text=_delays(told), name=told.job_id)


def _delays(told: "Extended") -> str:
    """A line for each waiting job that starts later; nothing if none does."""
    lines = [
        f"job {one.job_id} starts by {one.p90_at:%Y-%m-%d %H:%M} UTC, not {one.was_p90_at:%Y-%m-%d %H:%M}"
        if one.p90_at
        else f"job {one.job_id} has no estimate any more; it was {one.was_p90_at:%Y-%m-%d %H:%M} UTC"
        for one in told.delays
    ]
    if told.others_delayed:
        lines.append(f"and {told.others_delayed} of other tenants")
    return "\n".join(lines)
