"""The commands for reservations: GPUs of a tenant from a start to an end."""

from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.flags.options import TenantOption, YesOption
from gpusched.cli.reservations.durations import seconds_of
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, for_each, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect
from gpusched.protocol.reasons import fix_plurals

if TYPE_CHECKING:
    from gpusched.client.calls.booking import ReservationOptions
    from gpusched.protocol.rest.reservations import NextSlot, ReservationData

app = group("Book GPUs for a time: only your tenant uses them then, and other jobs end before the start.")
GpusOption = Annotated[int, typer.Option("--gpus", "-g", min=1, help="How many GPUs.")]
ForOption = Annotated[
    str | None, typer.Option("--for", help="How long, like 90m, 2h or 1d12h.", metavar="DURATION", show_default=False)
]
ModelOption = Annotated[
    str | None, typer.Option("--gpu-model", help="Accepted models, such as 'A100|H100'.", show_default=False)
]
MemoryOption = Annotated[
    int | None, typer.Option("--gpu-memory-mb", help="Minimum memory of each GPU, in MiB.", show_default=False)
]
FromOption = Annotated[
    str | None,
    typer.Option(
        "--from", help="The start, such as 2030-01-31T08:00:00Z; without it, now.", metavar="TIME", show_default=False
    ),
]
SeveralOption = Annotated[bool, typer.Option("--several-nodes", help="The GPUs may be on several nodes.")]
_COLUMNS: "tuple[Column[ReservationData], ...]" = (
    Column("ID", lambda r: r.id),
    Column("TENANT", lambda r: r.tenant),
    Column("USER", lambda r: r.user or ""),
    Column("STATE", lambda r: r.state),
    Column("FROM", lambda r: r.starts_at),
    Column("UNTIL", lambda r: r.ends_at),
    Column("GPUS", lambda r: r.gpus),
    Column("USED", lambda r: r.used_gpus),
    Column("KIND", lambda r: "lease" if r.lease else r.kind),
    Column("NODES", lambda r: ",".join(sorted({device.node for device in r.devices}))),
    Column("REPEATS", lambda r: r.recurrence or "", is_wide=True),
    Column("PROBLEM", lambda r: r.problem),
    Column("NOTE", lambda r: r.note, is_wide=True),
)


@app.command("create")
def create(
    ctx: typer.Context,
    gpus: GpusOption = 1,
    start: FromOption = None,
    duration: ForOption = None,
    until: Annotated[
        str | None, typer.Option("--until", help="The end, instead of --for.", metavar="TIME", show_default=False)
    ] = None,
    gpu_model: ModelOption = None,
    gpu_memory_mb: MemoryOption = None,
    several_nodes: SeveralOption = False,
    users: Annotated[
        list[str] | None,
        typer.Option("--user", help="Only this user's jobs; repeatable.", metavar="NAME", show_default=False),
    ] = None,
    repeats: Annotated[
        str | None, typer.Option("--repeat", help="daily or weekly, at the same time of day.", show_default=False)
    ] = None,
    soft: Annotated[bool, typer.Option("--soft", help="Only a preference of the scheduler; it costs nothing.")] = False,
    note: Annotated[str, typer.Option("--note", help="A note for your tenant.", show_default=False)] = "",
    tenant: TenantOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check it; book nothing.")] = False,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Book GPUs, and print the id of the reservation.

    \b
    gpusched reserve create --gpus 4 --from 2030-01-31T08:00:00Z --for 2h
    gpusched reserve create --gpus 8 --from 2030-01-31 --until 2030-02-02 --gpu-model H100
    gpusched reserve create --gpus 2 --from 2030-01-31T20:00:00Z --for 8h --repeat daily

    If the GPUs are not free, the error names what is in the way and the next free slot. The reservation is charged also
    while it is idle, and released if no job starts in it.
    """
    if (duration is None) == (until is None):
        raise typer.BadParameter("give exactly one of them", param_hint="--for or --until")
    options = _options(gpu_model, gpu_memory_mb, several_nodes, users, tenant, note)
    if repeats is not None:
        options["recurrence"] = repeats
    if soft:
        options["kind"] = "soft"
    seconds = None if duration is None else seconds_of(duration)
    with connect(ctx) as client:
        booked = client.reserve(gpus, start=start, until=until, for_seconds=seconds, dry_run=dry_run, **options)
    messages.note(f"{'it would be free: ' if dry_run else ''}{_summary(booked)}")
    output.one(booked, form, text="" if dry_run else str(booked.id), name=booked.id)


def _options(
    gpu_model: str | None,
    gpu_memory_mb: int | None,
    several_nodes: bool,
    users: list[str] | None,
    tenant: str | None,
    note: str,
) -> "ReservationOptions":
    """Return the options that differ from their defaults."""
    options: ReservationOptions = {}
    if gpu_model is not None:
        options["gpu_model"] = gpu_model
    if gpu_memory_mb is not None:
        options["gpu_memory_mb"] = gpu_memory_mb
    if several_nodes:
        options["one_node"] = False
    if users:
        options["users"] = users
    if tenant is not None:
        options["tenant"] = tenant
    if note:
        options["note"] = note
    return options


@app.command("list")
def list_reservations(
    ctx: typer.Context,
    tenant: TenantOption = None,
    state: Annotated[
        str, typer.Option(help="Only these states, with commas; 'all': every state.", show_default=False)
    ] = "planned,active",
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List planned and active reservations, with the GPUs that their jobs use now.

    \b
    gpusched reserve list
    gpusched reserve list --state all -o json
    """
    with connect(ctx) as client:
        rows = client.reservations(tenant=tenant, state=None if state == "all" else state)
    output.items(rows, _COLUMNS, form, name=lambda reservation: reservation.id)


@app.command("next")
def next_slot(
    ctx: typer.Context,
    gpus: GpusOption = 1,
    duration: ForOption = None,
    start: FromOption = None,
    gpu_model: ModelOption = None,
    gpu_memory_mb: MemoryOption = None,
    several_nodes: SeveralOption = False,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Print the next time at which GPUs are free for so long (default: 1h).

    \b
    gpusched reserve next --gpus 4 --for 2h
    gpusched reserve next --gpus 16 --for 1d --several-nodes
    """
    seconds = seconds_of(duration or "1h")
    with connect(ctx) as client:
        slot = client.next_slot(
            gpus, seconds, start=start, gpu_model=gpu_model, gpu_memory_mb=gpu_memory_mb, several_nodes=several_nodes
        )
    output.one(slot, form, text=_slot_text(slot), name=str(slot.starts_at or ""))


def _slot_text(slot: "NextSlot") -> str:
    if slot.starts_at is None:
        return "no free slot is known: jobs without a time limit hold too many of these GPUs"
    text = f"free from {slot.starts_at:%Y-%m-%d %H:%M:%S} UTC on {', '.join(slot.nodes)}"
    return f"{text}; {slot.blocker}" if slot.blocker else text


@app.command("shorten")
def shorten(ctx: typer.Context, reservation_ids: list[int]) -> None:
    """End active reservations now; their jobs keep running.

    \b
    gpusched reserve shorten 7
    """
    with connect(ctx) as client:
        for_each(reservation_ids, lambda number: messages.note(_ended(client.shorten_reservation(number))))


@app.command("cancel")
def cancel(
    ctx: typer.Context,
    reservation_ids: list[int],
    series: Annotated[bool, typer.Option("--series", help="Also the later occurrences.")] = False,
    yes: YesOption = False,
) -> None:
    """Cancel reservations.

    \b
    gpusched reserve cancel 7
    gpusched reserve cancel --series --yes 7
    """
    confirm(f"Cancel reservation {', '.join(map(str, reservation_ids))}?", is_sure=yes)
    with connect(ctx) as client:
        for_each(
            reservation_ids, lambda number: messages.note(_ended(client.cancel_reservation(number, series=series)))
        )


def _ended(reservation: "ReservationData") -> str:
    return f"reservation {reservation.id} is {reservation.state}"


def _summary(reservation: "ReservationData") -> str:
    nodes = ", ".join(sorted({device.node for device in reservation.devices}))
    return fix_plurals(
        f"{reservation.gpus} GPUs on {nodes or 'no node yet'} for tenant {reservation.tenant} "
        f"from {reservation.starts_at:%Y-%m-%d %H:%M} to {reservation.ends_at:%Y-%m-%d %H:%M} UTC"
    )
