"""The command `policy`: show the scheduling policy, change it, or preview a change."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.output import Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.protocol.rest.scheduling import EditedPolicy


def policy(
    ctx: typer.Context,
    changes: Annotated[list[str] | None, typer.Argument(metavar="[FIELD=VALUE]...", show_default=False)] = None,
    form: output.ObjectOption = Format.TABLE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Preview the effect; change nothing.")] = False,
) -> None:
    """Show the scheduling policy; with fields, change it (admins; from the next cycle on).

    \b
    gpusched policy
    gpusched policy online_percent=20 --dry-run
    gpusched policy policy=cost_aware 'cost_by_model={"H100": 2.5}'
    """
    requested = dict(_change(text) for text in changes or ())
    if dry_run and not requested:
        raise typer.BadParameter("name a field to change", param_hint="FIELD=VALUE")
    with connect(ctx) as client:
        if not requested:
            current = client.policy()
        else:
            # The server refuses the change if the policy was edited since it was read.
            current = client.set_policy(requested, version=client.policy().version, dry_run=dry_run)
            for sentence in current.effect.sentences if current.effect else ():
                messages.note(sentence)
            messages.note("nothing changed (dry run)" if dry_run else f"the policy is at version {current.version}")
    output.one(current, form, text=_described(current), name=current.policy)


def _change(text: str) -> tuple[str, Any]:
    """Parse online_percent=20 into name and value: JSON if valid, else a string."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise typer.BadParameter(f"{text!r} is not like online_percent=20", param_hint="FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _described(current: "EditedPolicy") -> str:
    names = [name for name in current.__struct_fields__ if name not in ("status", "effect")]
    values = {name: getattr(current, name) for name in names}
    width = max(map(len, names)) + 2
    return "\n".join(
        f"{name:<{width}}{value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()
    )
