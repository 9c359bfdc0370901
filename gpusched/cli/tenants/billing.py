"""The commands for use and money: a tenant's use, rates of GPU-hours, and budgets."""

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

app = group("""List, set and end the prices of GPU-hours.

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
    by: Annotated[By, typer.Option(help="The grouping of rows.")] = By.DAY,
    start: Annotated[
        Text,
        typer.Option(
            "--from",
            metavar="DAY|TIME",
            help="First day; by default the first of this month, or of the month in which --to ends.",
        ),
    ] = None,
    end: Annotated[Text, typer.Option("--to", metavar="DAY|TIME", help="End, not included; by default now.")] = None,
    form: output.OutputOption = Format.TABLE,
) -> None:
    """Show a tenant's use and its cost; running jobs count up to now.

    \b
    gpusched usage nlp
    gpusched usage nlp --by user --from 2030-01-01 --to 2030-02-01
    gpusched usage nlp --by job -o csv > january.csv

    The total goes to stderr, so that a file contains only the rows.
    """
    with connect(ctx) as client:
        result = client.usage(tenant, by=by, start=start, end=end)
    output.items(result.items, _USED, form, lambda part: part.key)
    total = result.total
    refunded_hours = amounts.exact(round(total.refunded_gpu_seconds / 3600, 4))
    refunded = f", and {refunded_hours} refunded" if total.refunded_gpu_seconds else ""
    cost = f"{amounts.exact(total.cost)} {result.currency}".rstrip()
    span = f"{_day(result.start_at)} to {_day(result.end_at)}"
    used = fix_plurals(f"{amounts.exact(total.gpu_hours)} GPU-hours in {total.jobs} jobs")
    messages.note(f"{result.tenant}, {span}: {used}, {cost}{refunded}")


def budget(
    ctx: typer.Context,
    tenant: Annotated[str, typer.Argument()],
    soft: Annotated[
        Text, typer.Option("--soft", metavar="N|none", help="Warn from this number of GPU-hours on.")
    ] = None,
    hard: Annotated[
        Text, typer.Option("--hard", metavar="N|none", help="Start no more GPU jobs from this number on.")
    ] = None,
    days: Annotated[
        str | None, typer.Option(metavar="N|month", help="Period: the last N days, or the calendar month.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Preview the budget; change nothing.")] = False,
    form: output.ObjectOption = Format.TABLE,
) -> None:
    """Show a tenant's budget and its use; with bounds, change it (admins). Omitted options stay unchanged.

    \b
    gpusched budget nlp
    gpusched budget nlp --soft 800 --hard 1000
    gpusched budget nlp --hard none --dry-run

    Bounds are GPU-hours, `none` is no bound; --days N counts the last N days, --days month the calendar month (UTC).
    """
    bounds = {"soft_gpu_hours": soft, "hard_gpu_hours": hard, "days": days}
    changes = {name: _bound(name, text) for name, text in bounds.items() if text is not None}
    if dry_run and not changes:
        raise typer.BadParameter("needs a bound to change", param_hint="--dry-run")
    with connect(ctx) as client:
        current = client.budget(tenant)
        if changes:
            # The server refuses the change if the budget was edited since it was read.
            unchanged = {name: getattr(current, name) for name in bounds}
            current = client.set_budget(tenant, **{**unchanged, **changes}, version=current.version, dry_run=dry_run)
            messages.note("nothing changed (dry run)" if dry_run else f"the budget is at version {current.version}")
    output.one(current, form, text=_standing(current), name=current.state)


def _standing(budget: "BudgetData") -> str:
    period = "the calendar month" if budget.days is None else f"the last {budget.days} days"
    bounds = ", ".join(
        f"{name} {amounts.exact(limit)} GPU-hours"
        for name, limit in (("soft", budget.soft_gpu_hours), ("hard", budget.hard_gpu_hours))
        if limit is not None
    )
    return f"{budget.tenant}: {budget.sentence}" + (f"\nbounds: {bounds} in {period}" if bounds else "")


def _bound(name: str, text: str) -> float | int | None:
    """Return the bound as the API expects it: None is no bound, and for the days the calendar month."""
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
    """List the current and earlier prices of GPU-hours, by model.

    \b
    gpusched rate list
    """
    with connect(ctx) as client:
        rows = client.rates()
    output.items(rows, _RATES, form, lambda rate: rate.id)


@app.command("set")
def set_rate(
    ctx: typer.Context,
    model: Annotated[str, typer.Argument(help="Words of the driver's name, like A100; '*' covers all other models.")],
    price: Annotated[float, typer.Argument(min=0, help="Price of a GPU-hour.")],
    start: Annotated[Text, typer.Option("--from", metavar="DAY|TIME", help="Start; by default now.")] = None,
    end: Annotated[Text, typer.Option("--to", metavar="DAY|TIME", help="End, not included; by default none.")] = None,
    form: output.ObjectOption = Format.NAME,
) -> None:
    """Set the price of a GPU-hour of a model, from now or later on (admins), and print the id of the rate.

    \b
    gpusched rate set H100 2.50
    gpusched rate set '*' 1 --from 2030-01-01
    """
    with connect(ctx) as client:
        rate = client.set_rate(model, price, starts_at=start, ends_at=end)
    price_text = amounts.exact(rate.price_per_gpu_hour)
    messages.note(f"a GPU-hour of {rate.gpu_model} costs {price_text} from {rate.starts_at:%Y-%m-%d %H:%M} on")
    output.one(rate, form, text=str(rate.id), name=rate.id)


@app.command("end")
def end_rate(ctx: typer.Context, rate_id: Annotated[int, typer.Argument(metavar="ID", min=1)]) -> None:
    """End a rate now, or withdraw a planned one (admins).

    \b
    gpusched rate end 7
    """
    with connect(ctx) as client:
        client.end_rate(rate_id)
    messages.note(f"rate {rate_id} ended")


def _day(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%d")
