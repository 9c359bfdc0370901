"""The commands for nodes: list, show, cordon, drain, uncordon, label, taint and remove them, and create join tokens."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from gpusched.cli.flags.options import YesOption
from gpusched.cli.jobs.queue import Watch
from gpusched.cli.terminal import messages, output, screen
from gpusched.cli.terminal.group import confirm, for_each, group
from gpusched.cli.terminal.output import Column, Format, age
from gpusched.cli.terminal.session import connect
from gpusched.client.errors import Invalid
from gpusched.protocol import amounts
from gpusched.protocol.addresses import is_local, split
from gpusched.protocol.affinity import taint_of, taint_text

if TYPE_CHECKING:
    from gpusched.client import Client
    from gpusched.protocol.affinity import Taint
    from gpusched.protocol.rest.cluster import Device, Node, NodeAction

# The server corrects only larger differences: smaller ones may be the delay of the message.
_CLOCK_SECONDS = 5.0

app = group("Manage nodes: cordon, drain, uncordon, label, taint, join, rotate credentials, remove.")


class Label(NamedTuple):
    name: str
    value: str
    set_by: str


_LABEL_COLUMNS: "tuple[Column[Label], ...]" = (
    Column("NAME", lambda row: row.name),
    Column("VALUE", lambda row: row.value),
    Column("SET BY", lambda row: row.set_by),
)
_TAINT_COLUMNS: "tuple[Column[Taint], ...]" = (
    Column("NAME", lambda taint: taint.key),
    Column("VALUE", lambda taint: taint.value),
    Column("EFFECT", lambda taint: taint.effect),
)
Names = Annotated[list[str], typer.Argument(metavar="NODE...", show_default=False)]

_COLUMNS: "tuple[Column[Node], ...]" = (
    Column("NODE", lambda node: node.name),
    Column("STATE", lambda node: node.state, is_state=True),
    Column("INTENT", lambda node: node.intent, is_state=True),
    Column("FREE", lambda node: _free_gpus(node)),
    Column("GPUS", lambda node: len(node.devices)),
    Column("MODEL", lambda node: ",".join(sorted({d.model for d in node.devices}))),
    Column("CPU FREE", lambda node: _free_cores(node)),
    Column("MEMORY FREE", lambda node: f"{node.memory_mb_free if _is_offered(node) else 0}/{node.memory_mb} MiB"),
    Column("SEEN", lambda node: age(node.last_seen_at)),
    Column("PRETEND", lambda node: node.pretend, is_wide=True),
    Column("AGENT", lambda node: node.agent_version, is_wide=True),
    Column("DRIVER", lambda node: node.driver_version, is_wide=True),
    Column("RUNTIMES", lambda node: _runtimes(node), is_wide=True),
    Column("ISOLATION", lambda node: str(node.isolation), is_wide=True),
    Column("LABELS", lambda node: ",".join(f"{k}={v}" for k, v in sorted(node.labels.items())), is_wide=True),
    Column("TAINTS", lambda node: ",".join(map(taint_text, node.taints)), is_wide=True),
    Column("TROUBLE", lambda node: _trouble(node)),
)


def _is_offered(node: "Node") -> bool:
    """Return True if new jobs may start there: nothing of a lost or closed node is free."""
    return node.state == "online" and node.intent == "open"


def _free_cores(node: "Node") -> str:
    return f"{amounts.exact(node.cpu_cores_free if _is_offered(node) else 0)}/{amounts.exact(node.cpu_cores)}"


def _free_gpus(node: "Node") -> int:
    free = [
        device
        for device in node.devices
        if device.held == "free" and device.health in ("ok", "hot") and not device.is_slowed
    ]
    return len(free) if _is_offered(node) else 0


def nodes(ctx: typer.Context, form: output.OutputOption = Format.TABLE, watch: Watch = False) -> None:
    """List nodes, their GPUs and free resources.

    \b
    gpusched nodes
    gpusched nodes --watch
    gpusched nodes -o json | jq '.[].devices[] | {uuid, health, held}'
    """
    with connect(ctx) as client:
        screen.items(client.nodes, _COLUMNS, form, lambda node: node.name, is_watching=watch)


_DEVICE_COLUMNS: "tuple[Column[Device], ...]" = (
    Column("GPU", lambda device: device.index),
    Column("ID", lambda device: device.id),
    Column("MODEL", lambda device: device.model),
    Column("HEALTH", lambda device: device.health, is_state=True),
    Column("HELD", lambda device: device.held, is_state=True),
    Column("BUSY", lambda device: _reading(device, "utilisation_percent", "%")),
    Column("MEMORY", lambda device: _memory(device)),
    Column("HEAT", lambda device: _reading(device, "temperature_celsius", "C")),
    Column("POWER", lambda device: _reading(device, "power_watts", "W")),
    Column("CLOCK", lambda device: _reading(device, "sm_clock_mhz", "MHz")),
    Column("THROTTLED BY", lambda device: ",".join((device.reading and device.reading.throttled_by) or ())),
    Column("ECC", lambda device: _reading(device, "ecc_uncorrected", ""), is_wide=True),
    Column("ECC CORRECTED", lambda device: _reading(device, "ecc_corrected", ""), is_wide=True),
    Column("POWER LIMIT", lambda device: _reading(device, "power_limit_watts", "W"), is_wide=True),
    Column("MEMORY CLOCK", lambda device: _reading(device, "memory_clock_mhz", "MHz"), is_wide=True),
    Column("NUMA", lambda device: device.numa_node, is_wide=True),
    Column("NVLINK", lambda device: device.nvlink_island, is_wide=True),
    Column("READ", lambda device: age(device.reading.read_at if device.reading else None), is_wide=True),
    Column("UUID", lambda device: device.uuid, is_wide=True),
    Column("JOBS", lambda device: ",".join(map(str, device.jobs))),
    Column("NOTE", lambda device: device.health_note),
)


@app.command()
def show(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NODE", show_default=False)],
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List the GPUs of a node with their latest readings; an empty cell is unknown.

    \b
    gpusched node show gpu-3
    gpusched node show gpu-3 -o wide

    The container runtimes, the isolation of jobs and, for admins, problems of the machine go to stderr. The column ID
    has the ids for `gpusched gpu`; -o wide has all readings.
    """
    with connect(ctx) as client:
        node = client.node(name)
    if form in (Format.TABLE, Format.WIDE):
        messages.note(f"runtimes: {_runtimes(node) or 'none for containers'}")
        messages.note(f"isolation: {node.isolation}" + (f" ({node.isolation.why})" if node.isolation.why else ""))
        if node.clock_off_seconds is not None and abs(node.clock_off_seconds) >= _CLOCK_SECONDS:
            messages.note(f"its clock is off by {node.clock_off_seconds:+.0f} s")
        if node.labels:
            messages.note(f"labels: {', '.join(f'{key}={value}' for key, value in sorted(node.labels.items()))}")
        if node.taints:
            messages.note(f"taints: {', '.join(map(taint_text, node.taints))}")
        for user, detail in node.missing_users.items():
            messages.note(f"no Unix user {user or 'for tenants without unix_user'}: {detail}")
        for hint in node.hints:
            messages.note(f"{hint.level} {hint.check}: {hint.says}" + (f"; {hint.next_step}" if hint.next_step else ""))
    output.items(node.devices, _DEVICE_COLUMNS, form, lambda device: device.uuid)


@app.command()
def cordon(ctx: typer.Context, names: Names) -> None:
    """Start no new jobs on nodes; running jobs continue.

    \b
    gpusched node cordon gpu-3

    For admins. Undo it with `gpusched node uncordon`.
    """
    _perform(ctx, names, lambda client, name: client.cordon(name))


@app.command()
def drain(ctx: typer.Context, names: Names) -> None:
    """Start no new jobs on nodes until their running jobs have ended.

    \b
    gpusched node drain gpu-3

    For admins. No job is stopped: the node is drained when all its GPUs are free.
    """
    _perform(ctx, names, lambda client, name: client.drain(name))


@app.command()
def uncordon(ctx: typer.Context, names: Names) -> None:
    """Let new jobs start on nodes again.

    \b
    gpusched node uncordon gpu-3

    For admins. Also for a node that was cordoned automatically for its faults.
    """
    _perform(ctx, names, lambda client, name: client.uncordon(name))


@app.command()
def remove(
    ctx: typer.Context,
    names: Names,
    yes: YesOption = False,
) -> None:
    """Remove nodes for good; their history stays.

    \b
    gpusched node remove gpu-3 --yes

    For admins. A node must be lost, cordoned or drained, and have no jobs. The server then refuses its agent; a node of
    this name can join again with a new join token.
    """
    confirm(f"Remove {', '.join(names)} for good?", is_sure=yes)
    _perform(ctx, names, lambda client, name: client.remove_node(name))


@app.command("rotate-credential")
def rotate_credential(ctx: typer.Context, names: Names) -> None:
    """Replace the credentials of nodes' agents; jobs continue.

    \b
    gpusched node rotate-credential gpu-3
    gpusched nodes -o json | jq -r '.[].name' | xargs gpusched node rotate-credential

    For admins. The agent makes the new one when it reports next. The old one is valid until the new one has been used;
    `gpusched node show NODE -o json` then has a new `credential_at`.
    """
    _perform(ctx, names, lambda client, name: client.rotate_node_credential(name))


@app.command()
def label(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NODE", show_default=False)],
    changes: Annotated[list[str] | None, typer.Argument(metavar="NAME=VALUE|NAME-...", show_default=False)] = None,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Show the labels of a node, set some, or remove those named with a dash.

    \b
    gpusched node label gpu-3
    gpusched node label gpu-3 zone=a rack=r7
    gpusched node label gpu-3 rack-

    Only admins can change them. A label that an admin sets wins over the one of the same name that the agent reports.
    """
    labels = dict(_label_change(word) for word in changes or ())
    with connect(ctx) as client:
        node = client.label_node(name, labels) if labels else client.node_labels(name)
    rows = [Label(key, value, "admin" if key in node.from_admin else "agent") for key, value in node.labels.items()]
    output.items(sorted(rows), _LABEL_COLUMNS, form, lambda row: row.name)


@app.command()
def taint(
    ctx: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NODE", show_default=False)],
    changes: Annotated[
        list[str] | None, typer.Argument(metavar="NAME[=VALUE]:EFFECT|NAME[:EFFECT]-...", show_default=False)
    ] = None,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Show the taints of a node, add some, or remove those named with a dash.

    \b
    gpusched node taint gpu-3
    gpusched node taint gpu-3 dedicated=ml:NoSchedule
    gpusched node taint gpu-3 dedicated:NoSchedule- spot:PreferNoSchedule
    gpusched node taint gpu-3 min-gpus=8:NoSchedule

    Only admins can change them. A job without the toleration (gpusched submit --toleration) does not start on a node
    with NoSchedule, and avoids one with PreferNoSchedule. min-gpus=N reserves the node for jobs of at least N GPUs,
    which need no toleration. Running jobs continue.
    """
    texts = changes or []
    remove = [word[:-1] for word in texts if word.endswith("-")]
    try:
        add = [taint_of(word) for word in texts if not word.endswith("-")]
    except ValueError as error:
        raise Invalid(str(error)) from error
    with connect(ctx) as client:
        node = client.taint_node(name, add, remove=remove) if texts else client.node_taints(name)
    output.items(node.taints, _TAINT_COLUMNS, form, taint_text)


@app.command("join-token")
def join_token(
    ctx: typer.Context,
    hours: Annotated[float, typer.Option(min=0.1, help="How long it is valid.")] = 24,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Print a token for new nodes to join with; the command for the node goes to stderr.

    \b
    gpusched node join-token
    gpusched node join-token -o json | jq -r .command

    For admins. Any number of nodes can join with it, until it expires.
    """
    with connect(ctx) as client:
        token = client.join_token(expires_in_hours=hours)
        token = msgspec.structs.replace(token, command=_at_all_heads(token.command, split(client.config.url)))
    if form is Format.TABLE and token.command:
        messages.note(f"on the new node: {token.command}")
        if is_local(client.config.url):
            messages.note("from another machine, write an address of this server in place of the local one")
    output.one(token, form, text=token.token, name=token.token)


def _at_all_heads(command: str, urls: Sequence[str]) -> str:
    """Return the join command with all known addresses of the control plane in place of the one that answered."""
    return " ".join(",".join(urls) if word in urls else word for word in command.split(" "))


def _perform(ctx: typer.Context, names: list[str], action: "Callable[[Client, str], NodeAction]") -> None:
    with connect(ctx) as client:

        def perform_one(name: str) -> None:
            answer = action(client, name)
            messages.note(answer.message or f"node {answer.node} is {answer.status}")

        for_each(names, perform_one)


def _label_change(word: str) -> tuple[str, str | None]:
    key, separator, value = word.partition("=")
    if separator:
        return key, value
    if not word.endswith("-") or len(word) == 1:
        raise Invalid(f"{word}: write NAME=VALUE to set a label, NAME- to remove it")
    return word[:-1], None


def _runtimes(node: "Node") -> str:
    return ", ".join(f"{name} {version}" for name, version in node.runtimes.items())


def _reading(device: "Device", name: str, unit: str) -> str:
    value = getattr(device.reading, name, None)
    return "" if value is None else f"{value:.0f} {unit}".strip()


def _memory(device: "Device") -> str:
    used = device.reading.memory_used_mb if device.reading else None
    sizes = ["?" if size is None else str(size) for size in (used, device.memory_mb)]
    return "" if used is None else f"{sizes[0]}/{sizes[1]} MiB"


def _trouble(node: "Node") -> str:
    return ", ".join(
        f"GPU {d.index} {d.health}" + (f" ({d.health_note})" if d.health_note else "")
        for d in node.devices
        if d.health not in ("ok", "")
    )
