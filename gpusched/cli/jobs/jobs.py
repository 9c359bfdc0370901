"""The commands for existing jobs: ps, why, attempts, logs, cancel, hold, release, requeue, retry."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.flags.options import YesOption
from gpusched.cli.jobs import arrays, explain_text
from gpusched.cli.jobs.queue import Watch
from gpusched.cli.terminal import messages, output, screen
from gpusched.cli.terminal.group import confirm, for_each
from gpusched.cli.terminal.output import Column, Format, age
from gpusched.cli.terminal.session import connect
from gpusched.protocol.states import LIVE, WAITING

if TYPE_CHECKING:
    from gpusched.client import Client, Job
    from gpusched.protocol.rest.jobs import Attempt

JobId = Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)]
JobIds = Annotated[list[int], typer.Argument(metavar="ID...", min=1, show_default=False)]

_COLUMNS: "tuple[Column[Job], ...]" = (
    Column("ID", lambda job: job.id),
    Column("NAME", lambda job: job.name),
    Column("TENANT", lambda job: job.tenant),
    Column("USER", lambda job: job.user),
    Column("STATE", lambda job: job.state, is_state=True),
    Column("GPUS", lambda job: job.gpu_count),
    Column("ELEMENTS", lambda job: arrays.progress(job.array)),
    Column("AGE", lambda job: age(job.submitted_at)),
    Column("PRIORITY", lambda job: job.priority, is_wide=True),
    Column("ATTEMPT", lambda job: job.attempt, is_wide=True),
    Column("SUBMITTED", lambda job: job.submitted_at, is_wide=True),
    Column("STARTED", lambda job: job.started_at, is_wide=True),
    Column("DEADLINE", lambda job: job.deadline_at, is_wide=True),
    Column("ENDED", lambda job: job.ended_at, is_wide=True),
    Column("EXIT", lambda job: job.exit_code, is_wide=True),
    Column("NODES", lambda job: ",".join(job.nodes)),
    Column("WHY", lambda job: job.reason.sentence if job.reason else None),
)


def ps(
    ctx: typer.Context,
    form: output.OutputOption = Format.TABLE,
    all_states: Annotated[bool, typer.Option("--all", "-a", help="Also ended jobs.")] = False,
    state: Annotated[str | None, typer.Option(help="Only these states, such as pending,held.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only of this tenant.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only of this user.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Only jobs whose name contains this.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="Maximum number of rows, newest first.")] = 200,
    watch: Watch = False,
) -> None:
    """List waiting and running jobs.

    \b
    gpusched ps
    gpusched ps --watch
    gpusched ps -a --user ada -o wide
    gpusched ps --state pending -o name | xargs -r gpusched cancel --yes
    """
    states = state or (None if all_states else ",".join(sorted(WAITING | LIVE)))

    def fetch() -> "Sequence[Job]":
        jobs = client.list(tenant=tenant, state=states, user=user, name=name, limit=limit + 1)
        return output.at_most(limit, jobs, has_note=not watch)

    with connect(ctx) as client:
        screen.items(fetch, _COLUMNS, form, lambda job: job.id, is_watching=watch)


def why(ctx: typer.Context, job_id: JobId, form: output.ObjectOption = Format.TABLE) -> None:
    """Explain a job's state: the reason, what would help, and when it will probably start.

    \b
    gpusched why 42
    gpusched why 42 -o json

    Prints the reason, since when it applies, the next step, a change that would start the job, further obstacles, the
    jobs ahead, the estimated start, and earlier reasons.
    """
    with connect(ctx) as client:
        explanation = client.why(job_id)
    output.one(
        explanation, form, text=explain_text.explanation_lines(explanation), name=explanation.code or explanation.state
    )


_ATTEMPT_COLUMNS: "tuple[Column[Attempt], ...]" = (
    Column("ATTEMPT", lambda attempt: attempt.number),
    Column("STATE", lambda attempt: attempt.state, is_state=True),
    Column("STARTED", lambda attempt: attempt.started_at),
    Column("ENDED", lambda attempt: attempt.ended_at),
    Column("NODES", lambda attempt: ",".join(sorted({rank.node for rank in attempt.ranks}))),
    Column("PEAK MEMORY", lambda attempt: _peak(attempt)),
    Column("CLASS", lambda attempt: attempt.exit_class, is_wide=True),
    Column("SAVED", lambda attempt: attempt.saved_at, is_wide=True),
    Column("HOW IT ENDED", lambda attempt: attempt.sentence),
)


def attempts(ctx: typer.Context, job_id: JobId, form: output.OutputOption = Format.TABLE) -> None:
    """List the attempts of a job: when, where, the peak memory of a rank, and how each ended.

    \b
    gpusched attempts 42
    gpusched attempts 42 -o json | jq '.[].ranks[]'
    """
    with connect(ctx) as client:
        rows = client.attempts(job_id)
    output.items(rows, _ATTEMPT_COLUMNS, form, lambda attempt: attempt.number)


def _peak(attempt: "Attempt") -> str:
    peaks = [(rank.peak_memory_mb, rank.peak_memory_of) for rank in attempt.ranks if rank.peak_memory_mb is not None]
    peak_mb, of = max(peaks, default=(None, None), key=lambda peak: peak[0] or 0)
    return "" if peak_mb is None else f"{peak_mb} MiB" + (" (largest process)" if of == "process" else "")


def logs(
    ctx: typer.Context,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue until the job ends.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="This attempt instead of the latest.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="This rank of a gang.")] = 0,
    element: Annotated[int | None, typer.Option(min=0, help="This element of an array.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines (at most 1 MiB).")] = None,
) -> None:
    """Print the output of a job.

    \b
    gpusched logs 42
    gpusched logs -f --tail 20 42
    gpusched logs 42 --attempt 1 --rank 3
    gpusched logs 42 --element 17

    Prints everything from the first byte: `gpusched logs 42 > 42.log`. --follow continues to the end of the job.
    """
    from gpusched.cli.jobs import log_output
    from gpusched.client.calls.jobs import job_of

    with connect(ctx) as client:
        if element is not None:
            job_id = job_of(client.element(job_id, element), job_id)
        log_output.print_log(client, job_id, attempt=attempt, rank=rank, tail=tail, is_following=follow)


def cancel(
    ctx: typer.Context,
    job_ids: JobIds,
    part: Annotated[str | None, typer.Option("--elements", help="Only these elements of an array, like 3-7,9.")] = None,
    yes: YesOption = False,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Cancel waiting or running jobs.

    \b
    gpusched cancel 42
    gpusched cancel --yes 42 43 44
    gpusched cancel 42 --elements 3-7,9

    Several jobs need a confirmation, or --yes. A job that has ended stays as it is.
    """
    if len(job_ids) > 1:
        confirm(f"Cancel {len(job_ids)} jobs?", is_sure=yes)
    _perform(ctx, job_ids, form, lambda client, job_id: client.cancel(job_id, part))


def retry(
    ctx: typer.Context,
    job_id: JobId,
    part: Annotated[str, typer.Option("--elements", help="failed, or ended elements like 3-7,9.")] = "failed",
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Run a failed, cancelled or preempted job again; of an array the elements that failed.

    \b
    gpusched retry 42
    gpusched retry 42 --elements 3-7,9

    This is another attempt of the same job, with its id and queue time.
    """
    _perform(ctx, [job_id], form, lambda client, job_id: client.retry(job_id, part))


def hold(ctx: typer.Context, job_ids: JobIds, form: output.OutputOption = Format.TABLE) -> None:
    """Hold waiting jobs: they do not start until they are released.

    \b
    gpusched hold 42
    """
    _perform(ctx, job_ids, form, lambda client, job_id: client.hold(job_id))


def release(ctx: typer.Context, job_ids: JobIds, form: output.OutputOption = Format.TABLE) -> None:
    """Release held jobs: they start when it is their turn.

    \b
    gpusched release 42
    """
    _perform(ctx, job_ids, form, lambda client, job_id: client.release(job_id))


def requeue(
    ctx: typer.Context, job_ids: JobIds, yes: YesOption = False, form: output.OutputOption = Format.TABLE
) -> None:
    """Stop live jobs and put them back into the queue.

    \b
    gpusched requeue 42

    Several jobs need a confirmation, or --yes. A job keeps its queue time and its number of retries.
    """
    if len(job_ids) > 1:
        confirm(f"Requeue {len(job_ids)} jobs?", is_sure=yes)
    _perform(ctx, job_ids, form, lambda client, job_id: client.requeue(job_id))


def _perform(ctx: typer.Context, job_ids: list[int], form: Format, action: "Callable[[Client, int], Job]") -> None:
    """Act on each job. With a format, print the resulting jobs to stdout; without one, only note the server's
    messages."""
    changed: list[Job] = []

    with connect(ctx) as client:

        def perform_one(job_id: int) -> None:
            job = action(client, job_id)
            messages.note(job.message or f"job {job.id} is {job.state}")
            changed.append(job)

        try:
            for_each(job_ids, perform_one)
        finally:
            if form is not Format.TABLE and changed:
                output.items(changed, _COLUMNS, form, lambda job: job.id)
    sys.stdout.flush()
