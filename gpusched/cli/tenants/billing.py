"""Commands about use and money: what a tenant used, rates of GPU-hours, and budgets."""

import math
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from gpusched.cli.terminal import messages, output
from gpusched.cli.terminal.group import group
from gpusched.cli.terminal.output import Column, Format
from gpusched.cli.terminal.session import connect
from gpusched.protocol import amounts
from gpusched.protocol.reasons import fix_plurals

if TYPE_CHECKING:
    from gpusched.protocol.rest.billing import BudgetData, RateData, UsedPart

app = group("""List, set and end what GPU-hours cost.

\b
gpusched rate list
gpusched rate set H100 2.50
""")
Tenant = Annotated[str | None, typer.Argument(metavar="[TENANT]", show_default=False)]
Text = str | None


class By(StrEnum):
    DAY = "day"
    USER = "user"
    JOB = "job"
    MODEL = "model"


_USED: "tuple[Column[UsedPart], ...]" = (
    Column("KEY", lambda part: part.key),
    Column("NAME", lambda part: part.name),
    Column("USER", lambda part: part.user),
    Column("GPU HOURS", lambda part: part.gpu_hours),
    Column("JOBS", lambda part: part.jobs),
    Column("COST", lambda part: part.cost),
    Column("GPU SECONDS", lambda part: part.gpu_seconds, is_wide=True),
    Column("RUNNING GPU SECONDS", lambda part: part.running_gpu_seconds, is_wide=True),
    Column("REFUNDED GPU SECONDS", lambda part: part.refunded_gpu_seconds, is_wide=True),
    Column("REFUNDED COST", lambda part: part.refunded_cost, is_wide=True),
    Column("UNPRICED GPU SECONDS", lambda part: part.unpriced_gpu_seconds, is_wide=True),
)


def usage(
    ctx: typer.Context,
    tenant: Tenant = None,
    by: Annotated[By, typer.Option(help="What a row is.")] = By.DAY,
    start: Annotated[
        Text,
        typer.Option(
            "--from",
            metavar="DAY|TIME",
            help="First day; without it the first of this month, or of that which --to ends.",
        ),
    ] = None,
    end: Annotated[Text, typer.Option("--to", metavar="DAY|TIME", help="Not included; without it now.")] = None,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Show what a tenant used and what it costs; running jobs are counted to now.

    \b
    gpusched usage nlp
    gpusched usage nlp --by user --from 2030-01-01 --to 2030-02-01
    gpusched usage nlp --by job -o csv > january.csv

    The sum goes to stderr, so that a file has the rows alone.
    """
    with connect(ctx) as client:
        found = client.usage(tenant, by=by, start=start, end=end)
    output.items(found.items, _USED, form, lambda part: part.key)
    total = found.total
    refunded = f", and {total.refunded_gpu_seconds / 3600:g} refunded" if total.refunded_gpu_seconds else ""
    cost = f"{total.cost:g} {found.currency}".rstrip()
    span = f"{_day(found.start_at)} to {_day(found.end_at)}"
    used = fix_plurals(f"{total.gpu_hours:g} GPU-hours in {total.jobs} jobs")
    messages.note(f"{found.tenant}, {span}: {used}, {cost}{refunded}")


def budget(
    ctx: typer.Context,
    tenant: Annotated[str, typer.Argument()],
    soft: Annotated[
        Text, typer.Option("--soft", metavar="N|none", help="From these GPU-hours on people are warned.")
    ] = None,
    hard: Annotated[
        Text, typer.Option("--hard", metavar="N|none", help="From these on nothing more starts on GPUs.")
    ] = None,
    days: Annotated[
        str | None, typer.Option(metavar="N|month", help="Of the last so many days, or the calendar month.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say how it would stand; change nothing.")] = False,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Show how the budget of a tenant stands; with bounds, change it (admins). What is not given stays.

    \b
    gpusched budget nlp
    gpusched budget nlp --soft 800 --hard 1000
    gpusched budget nlp --hard none --dry-run

    Bounds are GPU-hours, `none` is no bound; --days N counts the last N days, --days month the calendar month (UTC).
    """
    given = {"soft_gpu_hours": soft, "hard_gpu_hours": hard, "days": days}
    changes = {name: _bound(name, text) for name, text in given.items() if text is not None}
    if dry_run and not changes:
        raise typer.BadParameter("say what to change", param_hint="--dry-run")
    with connect(ctx) as client:
        found = client.budget(tenant)
        if changes:
            # The server refuses it if somebody else changed the budget since it was read.
            kept = {name: getattr(found, name) for name in given}
            found = client.set_budget(tenant, **{**kept, **changes}, version=found.version, dry_run=dry_run)
            messages.note("nothing was changed" if dry_run else f"the budget is at version {found.version}")
    output.one(found, form, text=_standing(found), name=found.state)


def _standing(found: "BudgetData") -> str:
    period = "the calendar month" if found.days is None else f"the last {found.days} days"
    bounds = ", ".join(
        f"{name} {amounts.bound(most)} GPU-hours"
        for name, most in (("soft", found.soft_gpu_hours), ("hard", found.hard_gpu_hours))
        if most is not None
    )
    return f"{found.tenant}: {found.sentence}" + (f"\nbounds: {bounds} in {period}" if bounds else "")


def _bound(name: str, text: str) -> float | int | None:
    """As the API has it: None is no bound, and of the days the calendar month."""
    word = "month" if name == "days" else "none"
    if text == word:
        return None
    try:
        bound = int(text) if name == "days" else float(text)
    except ValueError:
        bound = math.nan
    if not math.isfinite(bound):
        hint = f"--{name.partition('_')[0]}"
        raise typer.BadParameter(f"{text!r} is neither a number nor {word}", param_hint=hint)
    return bound


_RATES: "tuple[Column[RateData], ...]" = (
    Column("ID", lambda rate: rate.id),
    Column("MODEL", lambda rate: rate.gpu_model),
    Column("PER GPU HOUR", lambda rate: rate.price_per_gpu_hour),
    Column("CURRENCY", lambda rate: rate.currency),
    Column("FROM", lambda rate: rate.starts_at),
    Column("TO", lambda rate: rate.ends_at),
    Column("SET BY", lambda rate: rate.created_by, is_wide=True),
)


@app.command("list")
def list_rates(ctx: typer.Context, form: output.OutputOption = Format.TABLE) -> None:
    """List what GPU-hours cost and cost before, by model.

    \b
    gpusched rate list
    """
    with connect(ctx) as client:
        found = client.rates()
    output.items(found, _RATES, form, lambda rate: rate.id)


@app.command("set")
def set_rate(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Words of the driver's name, like A100; '*' is every other model.")],
    price: Annotated[float, typer.Argument(min=0, help="Of a GPU-hour.")],
    start: Annotated[
        Text, typer.Option("--from", metavar="DAY|TIME", help="From when on; without it from now.")
    ] = None,
    end: Annotated[Text, typer.Option("--to", metavar="DAY|TIME", help="Until before; without it for ever.")] = None,
    form: output.OutputOption = Format.NAME,
) -> None:
    """Set what a GPU-hour of a model costs, from now or later on (admins), and print its id.

    \b
    gpusched rate set H100 2.50
    gpusched rate set '*' 1 --from 2030-01-01
    """
    with connect(ctx) as client:
        made = client.set_rate(model, price, starts_at=start, ends_at=end)
    messages.note(
        f"a GPU-hour of {made.gpu_model} costs {made.price_per_gpu_hour:g} from {made.starts_at:%Y-%m-%d %H:%M} on"
    )
    output.one(made, form, text=str(made.id), name=made.id)


@app.command("end")
def end_rate(ctx: typer.Context, rate_id: Annotated[int, typer.Argument(metavar="ID", min=1)]) -> None:
    """End a rate now, or take a planned one back (admins).

    \b
    gpusched rate end 7
    """
    with connect(ctx) as client:
        client.end_rate(rate_id)
    messages.note(f"rate {rate_id} ended")


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d")
