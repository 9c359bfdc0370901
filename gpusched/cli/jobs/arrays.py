"""The command `elements`, and the progress of arrays for other commands."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect
from gpusched.protocol.states import FINAL, LIVE

if TYPE_CHECKING:
    from gpusched.protocol.rest.arrays import Element
    from gpusched.protocol.rest.jobs import ArrayData

_COLUMNS: "tuple[Column[Element], ...]" = (
    Column("ELEMENT", lambda element: element.index),
    Column("JOB", lambda element: element.job_id),
    Column("STATE", lambda element: element.state, is_state=True),
    Column("ATTEMPT", lambda element: element.attempt, is_wide=True),
    Column("STARTED", lambda element: element.started_at),
    Column("ENDED", lambda element: element.ended_at),
    Column("EXIT", lambda element: element.exit_code),
    Column("NODES", lambda element: ",".join(element.nodes)),
    Column("WHY", lambda element: element.reason.sentence if element.reason else None),
)


def elements(
    ctx: typer.Context,
    job_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    form: output.OutputOption = Format.TABLE,
    state: Annotated[str | None, typer.Option(help="Only these states, such as failed or waiting.")] = None,
    index: Annotated[str | None, typer.Option("--elements", help="Only these elements, like 3-7,9.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="Maximum number of rows.")] = 1000,
) -> None:
    """List the elements of an array by number.

    \b
    gpusched elements 42 --state failed
    gpusched elements 42 --elements 0-9 -o json
    gpusched elements 42 --state running -o name | xargs -n 1 gpusched why

    -o name prints the ids of their jobs; elements that are not jobs yet have none.
    """
    rows: Sequence[Element]
    with connect(ctx) as client:
        rows = output.at_most(limit, client.elements(job_id, state=state, index=index, limit=limit + 1))
        if not rows and client.get(job_id).array is None:
            messages.note(f"job {job_id} is not an array, so it has no elements")
    if form is Format.NAME:
        rows = _jobs(rows)
    output.items(rows, _COLUMNS, form, lambda element: element.job_id)


def _jobs(elements: "Sequence[Element]") -> "Sequence[Element]":
    jobs = [element for element in elements if element.job_id is not None]
    if omitted := len(elements) - len(jobs):
        are = "is not a job yet and has no id" if omitted == 1 else "are not jobs yet and have no ids"
        messages.note(f"{omitted} of these elements {are}")
    return jobs


def progress(array: "ArrayData | None") -> str | None:
    """Return the progress of an array in a few words; None if the job is no array."""
    if array is None:
        return None
    ended = sum(number for state, number in array.by_state.items() if state in FINAL)
    live = sum(number for state, number in array.by_state.items() if state in LIVE)
    failed = array.by_state.get("failed", 0)
    return (
        f"{ended}/{array.count} ended" + (f", {failed} failed" if failed else "") + (f", {live} live" if live else "")
    )
