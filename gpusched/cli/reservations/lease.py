"""The command `lease`: take GPUs from now on, without a job."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.flags.options import TenantOption
from gpusched.cli.reservations.durations import seconds_of
from gpusched.cli.reservations.reserve import GpusOption, MemoryOption, ModelOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import for_each, group
from gpusched.cli.terminal.output import Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.client.calls.booking import ReservationOptions

app = group(
    """Take GPUs from now on without a job, and print the id of the lease.

\b
gpusched lease --gpus 2 --for 2h
gpusched run --reservation 7 --gpus 2 -- python try.py
gpusched lease renew 7 --for 2h
gpusched lease end 7

Your jobs start in it at once. A lease that stays idle is reclaimed like idle GPUs of jobs.
"""
)


@app.callback(invoke_without_command=True, no_args_is_help=False)
def lease(
    ctx: typer.Context,
    gpus: GpusOption = 1,
    duration: Annotated[str, typer.Option("--for", help="How long, like 90m, 2h or 1d12h.", metavar="DURATION")] = "1h",
    gpu_model: ModelOption = None,
    gpu_memory_mb: MemoryOption = None,
    tenant: TenantOption = None,
    note: Annotated[str, typer.Option("--note", help="A note for your tenant.", show_default=False)] = "",
    form: output.ObjectOption = Format.TABLE,
) -> None:
    if ctx.invoked_subcommand:
        return
    options: ReservationOptions = {}
    if gpu_model is not None:
        options["gpu_model"] = gpu_model
    if gpu_memory_mb is not None:
        options["gpu_memory_mb"] = gpu_memory_mb
    if tenant is not None:
        options["tenant"] = tenant
    if note:
        options["note"] = note
    with connect(ctx) as client:
        taken = client.lease(gpus, seconds_of(duration), **options)
    messages.note(f"the lease ends at {taken.ends_at:%Y-%m-%d %H:%M} UTC; use it with --reservation {taken.id}")
    output.one(taken, form, text=str(taken.id), name=taken.id)


@app.command("renew")
def renew(
    ctx: typer.Context,
    reservation_id: int,
    duration: Annotated[
        str, typer.Option("--for", help="From now on, like 90m, 2h or 1d12h.", metavar="DURATION")
    ] = "1h",
) -> None:
    """Let a lease, or an active reservation, end so much later than now.

    \b
    gpusched lease renew 7 --for 2h
    """
    with connect(ctx) as client:
        renewed = client.renew_reservation(reservation_id, seconds_of(duration))
    messages.note(f"reservation {renewed.id} ends at {renewed.ends_at:%Y-%m-%d %H:%M} UTC")


@app.command("end")
def end(ctx: typer.Context, reservation_ids: list[int]) -> None:
    """End leases now; their jobs keep running.

    \b
    gpusched lease end 7
    """
    with connect(ctx) as client:
        for_each(
            reservation_ids,
            lambda number: messages.note(f"reservation {client.shorten_reservation(number).id} has ended"),
        )
