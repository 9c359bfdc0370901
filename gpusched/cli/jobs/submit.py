"""The commands `submit` and `run`: submit a job; `run` also prints its output and exits with its exit code."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpusched.cli.flags.flags import with_job_flags
from gpusched.cli.jobs import explain_text
from gpusched.cli.jobs.signal_relay import Signalled, SignalQueue, catch_signals
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.client import Client, Job
    from gpusched.protocol.job_request import JobRequest

KeyOption = Annotated[
    str | None, typer.Option("--idempotency-key", help="Two submits with the same key create one job.")
]

DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Preview the result; submit nothing.")]


@with_job_flags
def submit(
    ctx: typer.Context,
    jobs: list[dict[str, Any]],
    form: output.ObjectOption = output.Format.TABLE,
    idempotency_key: KeyOption = None,
    dry_run: DryRunOption = False,
) -> None:
    """Submit a job and print its id.

    \b
    gpusched submit --gpus 1 -- python train.py --epochs 10
    gpusched submit --gpus 8 --gang --ranks 8 --name big -- python train.py
    gpusched submit train.sh --epochs 10   (a script with #GPUSCHED or #SBATCH lines)
    gpusched submit -f job.yaml --priority 1000
    gpusched submit -f list-of-jobs.yaml   (all of them or none)
    gpusched submit --array 1000%50 --gpus 1 -- python train.py
    gpusched submit --dry-run --gpus 8 -- python train.py
    gpusched why $(gpusched submit --gpus 1 -- python train.py)

    --dry-run prints where the job would start now; or why not, when, which jobs it would preempt, and which smaller
    request would start. A list of jobs in a file is submitted all or none, and prints one id per line.
    """
    with connect(ctx) as client:
        if len(jobs) > 1:
            _submit_all(client, jobs, form, idempotency_key, is_dry_run=dry_run)
            return
        [fields] = jobs
        if dry_run:
            simulation = client.simulate_request(_request(client, fields))
            output.one(
                simulation,
                form,
                text=explain_text.simulation_lines(simulation),
                name="now" if simulation.starts_now else "later",
            )
            return
        job = _submitted(client, fields, idempotency_key)
    messages.note(job.message or f"job {job.id} submitted")
    output.one(job, form, text=str(job.id), name=job.id)


@with_job_flags
def run(ctx: typer.Context, jobs: list[dict[str, Any]]) -> None:
    """Submit a job, print its output, and exit with its exit code.

    \b
    gpusched run --gpus 1 -- nvidia-smi
    gpusched run --gpus 4 --max-runtime-minutes 30 -- python train.py > train.log

    Ctrl-C, SIGTERM or SIGHUP cancels the job: it gets SIGTERM and its grace, and run continues until its end; a second
    one exits at once. USR1, USR2 and QUIT are passed on (see gpusched signal). The exit code is the job's, or 128 + N
    if signal N ended it; without either 128 + the number of the signal that run got (130 after Ctrl-C), or 1.
    """
    if len(jobs) > 1:
        raise typer.BadParameter("run takes one job; see gpusched submit", param_hint="--file")
    if jobs[0].get("array"):
        raise typer.BadParameter("run prints a single output; see gpusched submit", param_hint="--array")
    # Catch signals before the submit: a job whose id is not known yet could not be cancelled.
    with connect(ctx) as client, catch_signals() as received:
        raise typer.Exit(_run(client, jobs[0], received))


def _submit_all(
    client: "Client", jobs: list[dict[str, Any]], form: output.Format, key: str | None, *, is_dry_run: bool
) -> None:
    """Submit many jobs in one request; print their ids to stdout, one per line."""
    requests = [_request(client, fields) for fields in jobs]
    result = client.submit_many(requests, key, dry_run=is_dry_run)
    messages.note(result.message)
    ids = "\n".join(map(str, result.job_ids))
    output.one(result, form, text=ids, name=ids)


def _submitted(client: "Client", fields: dict[str, Any], key: str | None) -> "Job":
    return client.submit_request(_request(client, fields), key)


def _request(client: "Client", fields: dict[str, Any]) -> "JobRequest":
    from gpusched.client.calls.jobs import as_request

    tenant = client.config.tenant
    return as_request({"tenant": tenant, **fields} if tenant else fields)


def _run(client: "Client", fields: dict[str, Any], received: SignalQueue) -> int:
    """Submit the job and print its output to the end. Return the exit code."""
    from gpusched.cli.jobs.log_output import print_growing
    from gpusched.cli.jobs.signal_relay import Relay
    from gpusched.client.errors import GpuschedError

    relay, job = Relay(client, received), None
    try:
        job = _submitted(client, fields, None)
        messages.note(f"job {job.id} submitted; Ctrl-C cancels it")
        relay.set_job(job.id)
        ended = print_growing(client, job)
    except Signalled as second:
        messages.note(f"\n{_left_behind(job)}")
        return 128 + second.number
    except GpuschedError:
        # The token was revoked or has expired, or the server is away: the job runs on, or waits.
        if job:
            messages.note(_left_behind(job) if received.ending else _continues(job))
        raise
    except OSError:
        # The pipe broke, the disk is full, or the terminal was closed: SIGHUP then also cancels the job.
        if received.ending is not None:
            relay.wait_cancelled()
        elif job:
            messages.note(_continues(job))
        raise
    return exit_code(ended, received.ending)


def _left_behind(job: "Job | None") -> str:
    see = f"gpusched why {job.id}" if job else "gpusched ps"
    return f"exiting before the end of {f'job {job.id}' if job else 'the job'}; see: {see}"


def _continues(job: "Job") -> str:
    return f"job {job.id} continues; see: gpusched logs -f {job.id}, or end it: gpusched cancel {job.id}"


def exit_code(job: "Job", received: int | None = None) -> int:
    """Return the exit code of the job's process, as a shell would; without one, 128 + the signal `received` by the
    command, or 1."""
    if job.state == "completed":
        return 0
    if job.signal:
        return 128 + job.signal
    if received is not None:
        return 128 + received if job.exit_code is None else job.exit_code
    return job.exit_code or 1
