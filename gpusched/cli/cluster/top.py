"""The command `top`: nodes, running and waiting jobs on one screen, refreshed every two seconds."""

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

# Maximum length of each requested list; a screen shows fewer.
_MAX_ROWS = 200
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
    """Watch nodes, running and waiting jobs on one screen; q quits. In a pipe: print them once.

    \b
    gpusched top
    gpusched top > now.txt

    GPUs of a node: # allocated and busy, = allocated and idle, . free, ! out of service.
    """
    with connect(ctx) as client:
        if screen.is_terminal():
            screen.show(lambda width, height: frame(client, width, height))
        else:
            print("\n".join(frame(client, None, None)))


def frame(client: "Client", width: int | None, height: int | None) -> list[str]:
    """Return the lines of the screen; all of them without a screen (None)."""
    status = client.status()
    nodes = client.nodes()
    # One more tells whether there are more.
    running = client.list(state=sorted(LIVE), limit=_MAX_ROWS + 1)
    waiting = client.queue(limit=_MAX_ROWS + 1)
    unavailable = status.total_gpus - status.available_gpus
    head = [
        f"gpusched {client.config.url}  {datetime.now(UTC):%H:%M:%S} UTC",
        f"nodes {status.online_nodes}/{status.total_nodes} online   GPUs {status.available_gpus} free, "
        f"{unavailable} not, of {status.total_gpus}   jobs {status.running_jobs} running, {status.pending_jobs} waiting"
        + ("   (pretend GPUs)" if status.pretend else ""),
    ]
    heights = _heights(height, (len(nodes), len(running), len(waiting)))
    return [
        *(line[:width] for line in head),
        *_part(nodes, _NODES, width, heights[0]),
        "",
        *_part(running, _RUNNING, width, heights[1], most=_MAX_ROWS),
        "",
        *_part(waiting, _WAITING, width, heights[2], most=_MAX_ROWS),
    ]


def _heights(height: int | None, counts: Sequence[int]) -> list[int]:
    """Return the number of lines of each list: what it needs up to a third, and the lines that others leave free."""
    needs = [count + 1 for count in counts]
    if height is None:
        return needs
    remaining = max(height - _HEADINGS, 2 * len(needs))
    heights = [0] * len(needs)
    for position, index in enumerate(sorted(range(len(needs)), key=lambda index: needs[index])):
        heights[index] = min(needs[index], remaining // (len(needs) - position))
        remaining -= heights[index]
    return heights


def _part(
    rows: "Sequence[output.T]",
    columns: "Sequence[Column[output.T]]",
    width: int | None,
    height: int,
    *,
    most: int | None = None,
) -> list[str]:
    """Return the lines of a list, at most `height`. `most`: the rows that are shown at all; if there are more, their
    number is not known."""
    is_cut = most is not None and len(rows) > most
    lines = output.table(rows[:most], columns, Format.TABLE, width_limit=width, is_clipped=width is not None)
    if len(lines) <= height and not is_cut:
        return lines
    hidden = len(lines) - height + 1
    number = f"more than {hidden} " if is_cut and hidden else f"{hidden} " if hidden else ""
    return [*lines[: height - 1], f"… {number}more"]


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
    readings = [d.reading.utilisation_percent for d in node.devices if d.reading]
    values = [percent for percent in readings if percent is not None]
    return f"{sum(values) / len(values):.0f} %" if values else ""


def _hottest(node: "Node") -> str:
    readings = [d.reading.temperature_celsius for d in node.devices if d.reading]
    values = [celsius for celsius in readings if celsius is not None]
    return f"{max(values):.0f} C" if values else ""
