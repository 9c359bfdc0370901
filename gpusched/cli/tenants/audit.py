"""The command `audit`: list the changes in the audit log."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import output
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.records import AuditEntry

_ENTRIES: "tuple[Column[AuditEntry], ...]" = (
    Column("AT", lambda entry: entry.at),
    Column("ACTOR", lambda entry: entry.actor),
    Column("VIA", lambda entry: entry.via),
    Column("ACTION", lambda entry: entry.action),
    Column("SUBJECT", lambda entry: entry.subject),
    Column("REQUEST", lambda entry: entry.request_id, is_wide=True),
    Column("PROGRAM", lambda entry: entry.agent, is_wide=True),
    Column("CHANGE", lambda entry: _change(entry)),
)


def audit(
    ctx: typer.Context,
    actor: Annotated[str | None, typer.Option(help="Only changes by this user.", show_default=False)] = None,
    action: Annotated[
        str | None, typer.Option(help="Such as quota.change, or its beginning, such as quota.", show_default=False)
    ] = None,
    subject: Annotated[str | None, typer.Option(help="Such as 'quota nlp'.", show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", "-l", min=1, help="Maximum number of rows, newest first.")] = 100,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List the changes in the audit log, newest first (admins).

    \b
    gpusched audit
    gpusched audit --action quota --subject 'quota nlp'
    gpusched audit --actor ada -o jsonl --limit 100000 > audit.jsonl
    """
    with connect(ctx) as client:
        rows = client.audit(actor=actor, action=action, subject=subject, limit=limit + 1)
    output.items(output.at_most(limit, rows), _ENTRIES, form, lambda entry: entry.id)


def _change(entry: "AuditEntry") -> str:
    """Return text such as `max_gpus 4 → 8`, or whether the subject was made or ended."""
    if entry.before is None or entry.after is None:
        return "made" if entry.before is None else "ended"
    return ", ".join(f"{name} {_value(entry.before.get(name))} → {_value(new)}" for name, new in entry.after.items())


def _value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
