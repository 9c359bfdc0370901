"""Commands about jobs that exist: ps, why, attempts, logs, cancel, hold, release, requeue, retry."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

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
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

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
    all_states: Annotated[bool, typer.Option("--all", "-a", help="Also those that have ended.")] = False,
    state: Annotated[str | None, typer.Option(help="Only these, such as pending,held.")] = None,
    tenant: Annotated[str | None, typer.Option("--tenant", "-t", help="Only of this tenant.")] = None,
    user: Annotated[str | None, typer.Option("--user", "-u", help="Only of this user.")] = None,
    name: Annotated[str | None, typer.Option("--name", "-n", help="Only those whose name has this in it.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most this many, newest first.")] = 200,
    watch: Watch = False,
) -> None:
    """List jobs that wait or run.

    \b
    gpusched ps
    gpusched ps --watch
    gpusched ps -a --user ada -o wide
    gpusched ps --state pending -o name | xargs -r gpusched cancel --yes
    """
    states = state or (None if all_states else ",".join(sorted(WAITING | LIVE)))

    def fetch() -> "Sequence[Job]":
        jobs = client.list(tenant=tenant, state=states, user=user, name=name, limit=limit + 1)
        return output.at_most(limit, jobs, is_told=not watch)

    with connect(ctx) as client:
        screen.items(fetch, _COLUMNS, form, lambda job: job.id, is_watching=watch)


def why(ctx: typer.Context, job_id: JobId, form: output.OutputOption = Format.TABLE) -> None:
    """Say why a job is where it is, what would help, and when it will probably start.

    \b
    gpusched why 42
    gpusched why 42 -o json

    The reason in a sentence, since when, the next step, what would start it, what else is in the way, what is ahead,
    when it starts, and its reasons before.
    """
    with connect(ctx) as client:
        told = client.why(job_id)
    output.one(told, form, text=explain_text.explanation_lines(told), name=told.code or told.state)


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
    """List the executions of a job: when, where, the most memory that a rank had, and how each ended.

    \b
    gpusched attempts 42
    gpusched attempts 42 -o json | jq '.[].ranks[]'
    """
    with connect(ctx) as client:
        found = client.attempts(job_id)
    output.items(found, _ATTEMPT_COLUMNS, form, lambda attempt: attempt.number)


def _peak(attempt: "Attempt") -> str:
    known = [(rank.peak_memory_mb, rank.peak_memory_of) for rank in attempt.ranks if rank.peak_memory_mb is not None]
    most, of = max(known, default=(None, None), key=lambda peak: peak[0] or 0)
    return "" if most is None else f"{most} MiB" + (" (largest process)" if of == "process" else "")


def logs(
    ctx: typer.Context,
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job ends.")] = False,
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this attempt instead of the latest.")] = None,
    rank: Annotated[int, typer.Option(min=0, help="Of this rank of a gang.")] = 0,
    element: Annotated[int | None, typer.Option(min=0, help="Of this element of an array.")] = None,
    tail: Annotated[int | None, typer.Option(min=1, help="Only the last lines (at most 1 MiB).")] = None,
) -> None:
    """Print the output of a job.

    \b
    gpusched logs 42
    gpusched logs -f --tail 20 42
    gpusched logs 42 --attempt 1 --rank 3
    gpusched logs 42 --element 17

    All of it, from the first byte: `gpusched logs 42 > 42.log`. With --follow it goes on to the end of the job.
    """
    from gpusched.cli.jobs import log_output
    from gpusched.client.calls.flows import job_of

    with connect(ctx) as client:
        if element is not None:
            job_id = job_of(client.element(job_id, element), job_id)
        log_output.print_log(client, job_id, attempt=attempt, rank=rank, tail=tail, is_following=follow)


def cancel(
    ctx: typer.Context,
    job_ids: JobIds,
    part: Annotated[str | None, typer.Option("--elements", help="Of an array only these, like 3-7,9.")] = None,
    yes: Yes = False,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """End jobs, waiting or running.

    \b
    gpusched cancel 42
    gpusched cancel --yes 42 43 44
    gpusched cancel 42 --elements 3-7,9

    Several at once ask first; --yes does not. A job that has ended stays as it is.
    """
    if len(job_ids) > 1:
        confirm(f"Cancel {len(job_ids)} jobs?", is_sure=yes)
    _act(ctx, job_ids, form, lambda client, job_id: client.cancel(job_id, part))


def retry(
    ctx: typer.Context,
    job_id: JobId,
    part: Annotated[str, typer.Option("--elements", help="failed, or those that have ended of 3-7,9.")] = "failed",
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Have a job run again that failed, was cancelled or preempted; of an array the elements that failed.

    \b
    gpusched retry 42
    gpusched retry 42 --elements 3-7,9

    It is another attempt of the same job, with its id and queue time.
    """
    _act(ctx, [job_id], form, lambda client, job_id: client.retry(job_id, part))


def hold(ctx: typer.Context, job_ids: JobIds, form: output.OutputOption = Format.TABLE) -> None:
    """Keep waiting jobs from starting until they are released.

    \b
    gpusched hold 42
    """
    _act(ctx, job_ids, form, lambda client, job_id: client.hold(job_id))


def release(ctx: typer.Context, job_ids: JobIds, form: output.OutputOption = Format.TABLE) -> None:
    """Let held jobs start when it is their turn.

    \b
    gpusched release 42
    """
    _act(ctx, job_ids, form, lambda client, job_id: client.release(job_id))


def requeue(ctx: typer.Context, job_ids: JobIds, yes: Yes = False, form: output.OutputOption = Format.TABLE) -> None:
    """Stop live jobs and put them back into the queue.

    \b
    gpusched requeue 42

    Several at once ask first; --yes does not. A job keeps its queue time, and no retry is used up.
    """
    if len(job_ids) > 1:
        confirm(f"Requeue {len(job_ids)} jobs?", is_sure=yes)
    _act(ctx, job_ids, form, lambda client, job_id: client.requeue(job_id))


def _act(ctx: typer.Context, job_ids: list[int], form: Format, action: "Callable[[Client, int], Job]") -> None:
    """The jobs as they are afterwards go to stdout where a format is asked for; to people the server's message."""
    done: list[Job] = []

    with connect(ctx) as client:

        def act(job_id: int) -> None:
            job = action(client, job_id)
            messages.note(job.message or f"job {job.id} is {job.state}")
            done.append(job)

        try:
            for_each(job_ids, act)
        finally:
            if form is not Format.TABLE and done:
                output.items(done, _COLUMNS, form, lambda job: job.id)
    sys.stdout.flush()
