"""`elements`, and what other commands say and ask of the elements of arrays."""

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
    Column("ELEMENT", lambda one: one.index),
    Column("JOB", lambda one: one.job_id),
    Column("STATE", lambda one: one.state, is_state=True),
    Column("ATTEMPT", lambda one: one.attempt, is_wide=True),
    Column("STARTED", lambda one: one.started_at),
    Column("ENDED", lambda one: one.ended_at),
    Column("EXIT", lambda one: one.exit_code),
    Column("NODES", lambda one: ",".join(one.nodes)),
    Column("WHY", lambda one: one.reason.sentence if one.reason else None),
)


def elements(
    ctx: typer.Context,
    job_id: Annotated[int, typer.Argument(metavar="ID", min=1, show_default=False)],
    form: output.OutputOption = Format.TABLE,
    state: Annotated[str | None, typer.Option(help="Only these, such as failed or waiting.")] = None,
    index: Annotated[str | None, typer.Option("--elements", help="Only these, like 3-7,9.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="At most this many.")] = 1000,
) -> None:
    """List the elements of an array, by their numbers.

    \b
    gpusched elements 42 --state failed
    gpusched elements 42 --elements 0-9 -o json
    gpusched elements 42 --state running -o name | xargs -n 1 gpusched why

    With -o name the ids of their jobs; those that are no jobs yet have none.
    """
    found: Sequence[Element]
    with connect(ctx) as client:
        found = output.at_most(limit, client.elements(job_id, state=state, index=index, limit=limit + 1))
    if form is Format.NAME:
        found = _jobs(found)
    output.items(found, _COLUMNS, form, lambda one: one.job_id)


def _jobs(found: "Sequence[Element]") -> "Sequence[Element]":
    jobs = [one for one in found if one.job_id is not None]
    if others := len(found) - len(jobs):
        are = "is no job yet and has no id" if others == 1 else "are no jobs yet and have no ids"
        messages.note(f"{others} of these elements {are}")
    return jobs


def progress(array: "ArrayData | None") -> str | None:
    """How far an array has come, in a few words; None: it is none."""
    if array is None:
        return None
    ended = sum(number for state, number in array.by_state.items() if state in FINAL)
    live = sum(number for state, number in array.by_state.items() if state in LIVE)
    failed = array.by_state.get("failed", 0)
    return (
        f"{ended}/{array.count} ended" + (f", {failed} failed" if failed else "") + (f", {live} live" if live else "")
    )
