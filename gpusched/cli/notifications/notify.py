"""The commands for notifications: routes for people, webhooks for programs, and what was delivered to them."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gpusched.cli.flags.options import YesOption
from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import confirm, group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect

if TYPE_CHECKING:
    from gpusched.client import Client
    from gpusched.protocol.rest.notifications import DeliveryData, RouteData, WebhookData

app = group("Get notified by e-mail, chat or webhook about jobs, budgets, reservations and incidents.")
TenantOption = Annotated[
    str | None,
    typer.Option("--tenant", "-t", help="A route of this tenant (owners); else your own.", show_default=False),
]
KindOption = Annotated[
    list[str],
    typer.Option("--kind", "-k", help="What to report, such as job_failed; repeat it for several.", show_default=False),
]
FileOption = Annotated[
    Path | None, typer.Option("--file", "-f", help="Read the address from this file.", show_default=False)
]
QuietOption = Annotated[
    str | None, typer.Option("--quiet-hours", help="Hold messages then, like 22:00-07:00.", show_default=False)
]
ZoneOption = Annotated[
    str | None, typer.Option(help="Time zone of the quiet hours, like Europe/Berlin.", show_default=False)
]
DigestOption = Annotated[
    int | None, typer.Option("--digest", help="Collect messages for this many minutes.", show_default=False)
]
# How long `notify test` waits for the result.
TEST_SECONDS, _PAUSE_SECONDS = 30.0, 0.5

_COLUMNS: "tuple[Column[RouteData | WebhookData], ...]" = (
    Column("ID", lambda r: r.id),
    Column("NAME", lambda r: r.name),
    Column("TENANT", lambda r: r.tenant or "(own)"),
    Column("TARGET", lambda r: getattr(r, "target", "") or f"webhook {getattr(r, 'url', '')}"),
    Column("KINDS", lambda r: ",".join(r.kinds)),
    Column("ON", lambda r: "yes" if r.enabled else "no"),
    Column("PENDING", lambda r: r.pending),
    Column("FAILED", lambda r: r.failed),
    Column("PROBLEM", lambda r: r.problem),
)
_DELIVERY_COLUMNS: "tuple[Column[DeliveryData], ...]" = (
    Column("ID", lambda d: d.id),
    Column("ROUTE", lambda d: d.route),
    Column("KIND", lambda d: d.kind),
    Column("SUBJECT", lambda d: d.subject_id),
    Column("STATE", lambda d: d.state, is_state=True),
    Column("ATTEMPTS", lambda d: d.attempts),
    Column("CREATED", lambda d: d.created_at),
    Column("ERROR", lambda d: d.error),
    Column("UID", lambda d: d.uid, is_wide=True),
)


@app.command("add")
def add(
    ctx: typer.Context,
    name: str,
    kind: KindOption,
    tenant: TenantOption = None,
    file: FileOption = None,
    quiet_hours: QuietOption = None,
    time_zone: ZoneOption = None,
    digest: DigestOption = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Add a route for people. Its address of Apprise comes from stdin, --file or a prompt: it contains secrets.

    \b
    gpusched notify add mail --kind job_failed --kind job_about_to_end
    gpusched notify add team --tenant nlp --kind budget --file slack.txt
    gpusched notify add night --kind job_failed --quiet-hours 22:00-07:00 --time-zone Europe/Berlin

    Addresses look like mailtos://user:password@smtp.example.com?to=ada@example.com, ntfys://ntfy.example.com/topic or
    slack://TokenA/TokenB/TokenC; https://appriseit.com has all forms.
    """
    target = _address(file)
    with connect(ctx) as client:
        options: Any = _options(quiet_hours, time_zone, digest)
        route = client.create_notification_route(name, target, kind, tenant=tenant, **options)
    output.one(
        route, form, f"route {route.name} ({route.id}) is created; try it: gpusched notify test {route.id}", route.id
    )


@app.command("webhook")
def webhook(
    ctx: typer.Context,
    name: str,
    kind: KindOption,
    tenant: TenantOption = None,
    file: FileOption = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Add a webhook. Its URL comes from stdin, --file or a prompt; the secret of its signatures is shown once.

    \b
    gpusched notify webhook ci --tenant nlp --kind job_ended --kind job_failed
    """
    url = _address(file)
    with connect(ctx) as client:
        created = client.create_webhook(name, url, kind, tenant=tenant)
    messages.note(f"webhook {created.name} ({created.id}) is created; its secret, shown this once:")
    output.one(created, form, created.secret, created.id)


@app.command("list")
def list_routes(ctx: typer.Context, tenant: TenantOption = None, form: output.OutputOption = Format.TABLE) -> None:
    """List routes and webhooks, with their problems.

    \b
    gpusched notify list
    gpusched notify list --tenant nlp
    """
    with connect(ctx) as client:
        rows: list[RouteData | WebhookData] = [*client.notification_routes(tenant), *client.webhooks(tenant)]
    output.items(rows, _COLUMNS, form, lambda r: r.id)


@app.command("edit")
def edit(
    ctx: typer.Context,
    route: int,
    kind: Annotated[
        list[str] | None,
        typer.Option("--kind", "-k", help="All kinds that it reports from now on.", show_default=False),
    ] = None,
    on: Annotated[bool | None, typer.Option("--on/--off", help="Turn it on or off.", show_default=False)] = None,
    quiet_hours: QuietOption = None,
    time_zone: ZoneOption = None,
    digest: DigestOption = None,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Change a route or webhook, by its number in `notify list`.

    \b
    gpusched notify edit 4 --off
    gpusched notify edit 4 --kind job_failed --kind budget --digest 60
    """
    changes: Any = _options(quiet_hours, time_zone, digest)
    changes |= {} if not kind else {"kinds": kind}
    changes |= {} if on is None else {"enabled": on}
    with connect(ctx) as client:
        if _is_webhook(client, route):
            changed: RouteData | WebhookData = client.change_webhook(route, **changes)
        else:
            changed = client.change_notification_route(route, **changes)
    output.one(changed, form, f"{changed.name} is changed", changed.id)


@app.command("test")
def send_test(ctx: typer.Context, route: int, form: output.ObjectOption = Format.TABLE) -> None:
    """Send a test message, and wait for its result. Exit code 1 if it was not sent.

    \b
    gpusched notify test 4
    """
    with connect(ctx) as client:
        is_webhook = _is_webhook(client, route)
        sent = client.try_webhook(route) if is_webhook else client.try_notification_route(route)
        deadline = time.monotonic() + TEST_SECONDS
        while sent.state == "pending" and not sent.error and time.monotonic() < deadline:
            time.sleep(_PAUSE_SECONDS)
            sent = client.delivery(sent.id)
    is_sent = sent.state == "sent"
    text = "the test message was sent" if is_sent else f"the test message was not sent: {sent.error or 'no result yet'}"
    output.one(sent, form, text, sent.state)
    if not is_sent:
        raise typer.Exit(1)


@app.command("rotate")
def rotate(ctx: typer.Context, webhook: int, form: output.ObjectOption = Format.TABLE) -> None:
    """Replace the secret of a webhook; for 24 hours the old one signs, too.

    \b
    gpusched notify rotate 5
    """
    with connect(ctx) as client:
        rotated = client.rotate_webhook_secret(webhook)
    messages.note("the new secret, shown this once:")
    output.one(rotated, form, rotated.secret, rotated.id)


@app.command("remove")
def remove(
    ctx: typer.Context,
    route: int,
    yes: YesOption = False,
) -> None:
    """Remove a route or webhook with its deliveries.

    \b
    gpusched notify remove 4 --yes
    """
    confirm(f"Remove route {route}? What waits for it is not sent.", is_sure=yes)
    with connect(ctx) as client:
        if _is_webhook(client, route):
            client.delete_webhook(route)
        else:
            client.delete_notification_route(route)
    messages.note(f"route {route} is removed")


@app.command("deliveries")
def deliveries(
    ctx: typer.Context,
    route: Annotated[int | None, typer.Option(help="Only those of this route or webhook.", show_default=False)] = None,
    state: Annotated[
        str | None, typer.Option("--state", "-s", help="pending, sent or failed.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="Show at most this many.")] = 50,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """List what was sent, newest first, and why something was not.

    \b
    gpusched notify deliveries --route 4 --state failed
    """
    with connect(ctx) as client:
        rows = client.deliveries(route, state=state, limit=limit + 1)
    output.items(output.at_most(limit, rows), _DELIVERY_COLUMNS, form, lambda d: d.id)


@app.command("replay")
def replay(ctx: typer.Context, delivery: int, form: output.ObjectOption = Format.TABLE) -> None:
    """Send a delivery again, under the same id.

    \b
    gpusched notify replay 8
    """
    with connect(ctx) as client:
        again = client.replay_delivery(delivery)
    output.one(again, form, f"delivery {again.id} is sent again", again.id)


def _is_webhook(client: "Client", route: int) -> bool:
    """Return whether the number is a webhook's; 404 if it is nothing's."""
    from gpusched.client.errors import NotFound

    try:
        client.notification_route(route)
    except NotFound:
        client.webhook(route)
        return True
    return False


def _options(quiet_hours: str | None, time_zone: str | None, digest: int | None) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if quiet_hours is not None:
        start, _, end = quiet_hours.partition("-")
        options |= {"quiet_from": start.strip() or None, "quiet_until": end.strip() or None}
    if time_zone is not None:
        options["time_zone"] = time_zone
    if digest is not None:
        options["digest_minutes"] = digest
    return options


def _address(file: Path | None) -> str:
    """Return the address from a file, stdin or a prompt: other users could see an argument."""
    from gpusched.client.errors import Invalid

    if file is None and sys.stdin.isatty():
        return str(typer.prompt("Address", hide_input=True, err=True)).strip()
    try:
        return (sys.stdin.read() if file is None else file.read_text()).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"cannot read {file or 'stdin'}: {error}") from error
