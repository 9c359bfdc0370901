"""The commands for scheduling cycles: list the latest ones, and replay a recorded one."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import output
from gpusched.cli.terminal.group import group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.scheduling import Cycle, CycleReplay, ReplayedJob

app = group(
    """List the latest scheduling cycles: what started each, what it decided, and how long it took (admins).

\b
gpusched cycles
gpusched cycles -o json --limit 1000 | jq '[.[].plan_ms] | max'
gpusched cycles replay 1234
"""
)

_CYCLES: "tuple[Column[Cycle], ...]" = (
    Column("ID", lambda cycle: cycle.id),
    Column("STARTED", lambda cycle: cycle.started_at),
    Column("TRIGGER", lambda cycle: cycle.trigger),
    Column("PENDING", lambda cycle: cycle.pending),
    Column("PLACED", lambda cycle: cycle.placed),
    Column("PREEMPTED", lambda cycle: cycle.preempted),
    Column("STALE", lambda cycle: cycle.stale, is_wide=True),
    Column("REASONS", lambda cycle: cycle.reasons_written, is_wide=True),
    Column("RESERVED", lambda cycle: cycle.reserved_job_id, is_wide=True),
    Column("RECORDED", lambda cycle: cycle.is_recorded),
    Column("WORKER", lambda cycle: cycle.worker, is_wide=True),
    Column("SNAPSHOT MS", lambda cycle: cycle.snapshot_ms),
    Column("PLAN MS", lambda cycle: cycle.plan_ms),
    Column("COMMIT MS", lambda cycle: cycle.commit_ms),
)


@app.callback(invoke_without_command=True, no_args_is_help=False)
def cycles(
    ctx: typer.Context,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, max=1000, help="At most this many, newest first.")] = 20,
    form: output.OutputOption = Format.TABLE,
) -> None:
    if ctx.invoked_subcommand:
        return
    with connect(ctx) as client:
        rows = client.cycles(limit=limit + 1)
    output.items(output.at_most(limit, rows), _CYCLES, form, lambda cycle: cycle.id)


@app.command()
def replay(
    ctx: typer.Context,
    cycle_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    policy: Annotated[
        str | None, typer.Option(help="Plan with this queue order instead of the recorded one.", show_default=False)
    ] = None,
    job: Annotated[int | None, typer.Option("--job", min=1, help="Explain this job.", show_default=False)] = None,
    why_not: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Also explain why it does not start on this node.", show_default=False),
    ] = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Replay a recorded scheduling cycle: its decisions and their reasons, or those of another policy (admins).

    \b
    gpusched cycles replay 1234
    gpusched cycles replay 1234 --job 42 --why-not gpu-node-7
    gpusched cycles replay 1234 --policy shortest

    `gpusched why` names the cycle of a job's latest decision. Exit code 1: this version's engine plans the cycle
    differently from the recording.
    """
    if why_not is not None and job is None:
        raise typer.BadParameter("needs --job", param_hint="--why-not")
    with connect(ctx) as client:
        replayed = client.replay_cycle(cycle_id, policy=policy, job_id=job, node=why_not)
    output.one(replayed, form, text="\n".join(_lines(replayed)), name=replayed.cycle_id)
    if replayed.is_same is False:
        raise typer.Exit(1)


def _lines(it: "CycleReplay") -> list[str]:
    lines = [f"cycle {it.cycle_id}, {it.decided_at:%Y-%m-%d %H:%M:%S} UTC, policy {it.policy}: {_verdict(it)}"]
    if it.job is not None:
        return [*lines, *_job_lines(it.job)]
    lines += [f"starts: job {start.job_id} on {', '.join(start.nodes)}, GPUs: {start.gpus}" for start in it.placements]
    lines += [f"stops:  {_ids(stop.victims)} for job {stop.job_id} (by {stop.rule})" for stop in it.preemptions]
    if it.promised_job_id is not None:
        lines.append(f"promises job {it.promised_job_id} a start at {it.promised_at:%Y-%m-%d %H:%M:%S} UTC")
    lines += [f"waits:  {_ids(wait.job_ids, wait.jobs)}: {wait.sentence}" for wait in it.waits]
    if it.starts_only_here or it.starts_only_recorded:
        lines.append(f"starts only here: {_ids(it.starts_only_here)}")
        lines.append(f"starts only as recorded: {_ids(it.starts_only_recorded)}")
    return lines


def _verdict(it: "CycleReplay") -> str:
    if it.is_same is None:
        return f"its decisions instead of those of {it.recorded_policy}"
    if it.is_same:
        return "the same plan as recorded, byte for byte"
    return "this version of gpusched plans it differently"


def _job_lines(it: "ReplayedJob") -> list[str]:
    lines = [f"job {it.job_id} starts on {', '.join(it.nodes)}"] if it.starts else []
    if it.reason is not None:
        lines.append(f"job {it.job_id} waits: {it.reason.sentence}")
    lines += [f"if:    {sentence}" for sentence in it.changes]
    if it.node is not None:
        lines.append(f"on {it.node}:" if it.obstacles else f"it does start on {it.node}")
        lines += [f"  {obstacle.test}: {obstacle.sentence}" for obstacle in it.obstacles]
    return lines


def _ids(job_ids: list[int], jobs: int | None = None) -> str:
    """Return the first ten ids, and the number of further ones."""
    if not job_ids:
        return "none"
    more = (jobs or len(job_ids)) - len(job_ids[:10])
    listed = ", ".join(str(job_id) for job_id in job_ids[:10])
    return f"{'job' if len(job_ids) == 1 else 'jobs'} {listed}" + (f" and {more} more" if more else "")
