"""The command `top`: nodes, what runs and what waits, on one screen that is drawn again every two seconds."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import typer

from gpusched.cli.terminal import output, screen
from gpusched.cli.terminal.output import Column, Format, age
from gpusched.cli.terminal.session import connect
from gpusched.protocol.states import LIVE

if TYPE_CHECKING:
    from gpusched.client import Client, Job
    from gpusched.protocol.rest.cluster import Device, Node
    from gpusched.protocol.rest.scheduling import QueueItem

# Of each list at most this many are asked for; a screen shows fewer.
_MOST = 200
_HEADINGS = 4  # the two lines above the lists, and the blank ones between them

_NODES: "tuple[Column[Node], ...]" = (
    Column("NODE", lambda node: node.name[:20]),
    Column("STATE", lambda node: node.state if node.intent in ("open", "") else node.intent, is_state=True),
    Column("GPUS", lambda node: "".join(_cell(node, device) for device in node.devices)),
    Column("BUSY", lambda node: _mean(node)),
    Column("HOTTEST", lambda node: _hottest(node)),
    Column("MODEL", lambda node: ",".join(sorted({device.model for device in node.devices}))),
)
_RUNNING: "tuple[Column[Job], ...]" = (
    Column("RUNNING", lambda job: job.id),
    Column("NAME", lambda job: job.name[:20]),
    Column("TENANT", lambda job: job.tenant[:12]),
    Column("USER", lambda job: job.user[:10]),
    Column("STATE", lambda job: job.state, is_state=True),
    Column("GPUS", lambda job: job.gpu_count),
    Column("FOR", lambda job: age(job.started_at)),
    Column("NODES", lambda job: ",".join(job.nodes)),
)
_WAITING: "tuple[Column[QueueItem], ...]" = (
    Column("WAITING", lambda item: item.job_id),
    Column("NAME", lambda item: item.name[:20]),
    Column("TENANT", lambda item: item.tenant[:12]),
    Column("GPUS", lambda item: item.gpu_count),
    Column("FOR", lambda item: age(item.submitted_at)),
    Column("WHY", lambda item: item.reason.sentence if item.reason else None),
)


def top(ctx: typer.Context) -> None:
    """Watch nodes, running and waiting jobs on one screen; q ends it. In a pipe: prints them once.

    \b
    gpusched top
    gpusched top > now.txt

    Of the GPUs of a node: # held by a job and busy, = held and idle, . free, ! not offered.
    """
    with connect(ctx) as client:
        if screen.is_there():
            screen.show(lambda width, height: frame(client, width, height))
        else:
            print("\n".join(frame(client, None, None)))


def frame(client: "Client", width: int | None, height: int | None) -> list[str]:
    """The lines of the screen; all of them where there is no screen (None)."""
    status = client.status()
    nodes = client.nodes()
    running = client.list(state=sorted(LIVE), limit=_MOST)
    waiting = client.queue(limit=_MOST)
    held = status.total_gpus - status.available_gpus
    head = [
        f"gpusched {client.config.url}  {datetime.now(UTC):%H:%M:%S} UTC",
        f"nodes {status.online_nodes}/{status.total_nodes} online   GPUs {status.available_gpus} free, {held} not, of "
        f"{status.total_gpus}   jobs {status.running_jobs} running, {status.pending_jobs} waiting"
        + ("   (pretend GPUs)" if status.pretend else ""),
    ]
    rooms = _rooms(height, (len(nodes), len(running), len(waiting)))
    return [
        *(line[:width] for line in head),
        *_part(nodes, _NODES, width, rooms[0]),
        "",
        *_part(running, _RUNNING, width, rooms[1]),
        "",
        *_part(waiting, _WAITING, width, rooms[2]),
    ]


def _rooms(height: int | None, wanted: Sequence[int]) -> list[int]:
    """How many lines each list gets: what it needs up to a third, and of what others leave."""
    needs = [count + 1 for count in wanted]
    if height is None:
        return needs
    left = max(height - _HEADINGS, 2 * len(needs))
    rooms = [0] * len(needs)
    for place, index in enumerate(sorted(range(len(needs)), key=lambda index: needs[index])):
        rooms[index] = min(needs[index], left // (len(needs) - place))
        left -= rooms[index]
    return rooms


def _part(rows: "Sequence[output.T]", columns: "Sequence[Column[output.T]]", width: int | None, room: int) -> list[str]:
    lines = output.table(rows, columns, Format.TABLE, room=width, is_clipped=width is not None)
    return lines if len(lines) <= room else [*lines[: room - 1], f"… {len(lines) - room + 1} more"]


def _cell(node: "Node", device: "Device") -> str:
    is_closed = node.intent not in ("open", "") and device.held in ("free", "")
    if node.state == "lost" or is_closed:
        return "!"
    if device.health not in ("ok", "hot", ""):
        return "!"
    if device.held in ("free", ""):
        return "."
    return "=" if device.reading and device.reading.utilisation_percent == 0 else "#"


def _mean(node: "Node") -> str:
    known = [d.reading.utilisation_percent for d in node.devices if d.reading]
    told = [percent for percent in known if percent is not None]
    return f"{sum(told) / len(told):.0f} %" if told else ""


def _hottest(node: "Node") -> str:
    known = [d.reading.temperature_celsius for d in node.devices if d.reading]
    told = [celsius for celsius in known if celsius is not None]
    return f"{max(told):.0f} C" if told else ""
