"""The command about the scheduling policy: shows it, changes it, says what a change would do."""

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
    form: output.OutputOption = Format.TABLE,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what the change would do; change nothing.")] = False,
) -> None:
    """Show the scheduling policy; with fields, change it (admins; from the next cycle on).

    \b
    gpusched policy
    gpusched policy online_percent=20 --dry-run
    gpusched policy policy=cost_aware 'cost_by_model={"H100": 2.5}'
    """
    wanted = dict(_change(text) for text in changes or ())
    if dry_run and not wanted:
        raise typer.BadParameter("say what to change", param_hint="FIELD=VALUE")
    with connect(ctx) as client:
        if not wanted:
            shown = client.policy()
        else:
            # The server refuses it if somebody else changed the policy since it was read.
            shown = client.set_policy(wanted, version=client.policy().version, dry_run=dry_run)
            for sentence in shown.effect.sentences if shown.effect else ():
                messages.note(sentence)
            messages.note("nothing was changed" if dry_run else f"the policy is at version {shown.version}")
    output.one(shown, form, text=_described(shown), name=shown.policy)


def _change(text: str) -> tuple[str, Any]:
    """online_percent=20 as name and value: JSON where it is some, else a word."""
    name, equals, value = text.partition("=")
    if not equals or not name or not value:
        raise typer.BadParameter(f"{text!r} is not like online_percent=20", param_hint="FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def _described(shown: "EditedPolicy") -> str:
    names = [name for name in shown.__struct_fields__ if name not in ("status", "effect")]
    values = {name: getattr(shown, name) for name in names}
    width = max(map(len, names)) + 2
    return "\n".join(
        f"{name:<{width}}{value if isinstance(value, str) else json.dumps(value)}" for name, value in values.items()
    )
