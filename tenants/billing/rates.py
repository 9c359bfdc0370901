"""Rates: the price of a GPU-hour over time. Rates apply to the future, and end; past use keeps its price."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Q

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.db.sql import database_now, execute, query, rows, violates
from gpusched.lib.hooks import hook
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from tenants.models import Rate

EVERY_MODEL = "*"
MAX_PRICE = Decimal(1_000_000)
_NAME = re.compile(r"\*|[\w.+/()-]+( [\w.+/()-]+)*")


class PricePeriod(NamedTuple):
    """The price of a GPU-hour of a model, as the ledger names it, within this time."""

    gpu_model: str
    starts_at: datetime
    ends_at: datetime | None
    price: Decimal


def set_rate(gpu_model: str, price: Decimal, starts_at: datetime | None, ends_at: datetime | None, actor: str) -> int:
    """Create a rate from `starts_at` (None: now) on. Return its id. A rate in force without an end ends there.

    Past prices stay: 409 for a time, in the past or with a planned end, for which the model has a rate, and for the
    past also if a more specific rate prices a model that this one matches."""
    _check(gpu_model, price)
    try:
        with transaction.atomic():
            execute(
                "LOCK TABLE tenants_rate IN SHARE ROW EXCLUSIVE MODE"
            )  # so that the rates checked below do not change
            now = database_now()
            begins_at = starts_at or now
            if ends_at is not None and ends_at <= begins_at:
                raise invalid([FieldError("ends_at", "out_of_range", "must be after starts_at")])
            if begins_at >= now:  # past use keeps its rates
                _end_open(gpu_model, begins_at)
            elif priced := _closer_rate(gpu_model, begins_at, min(now, ends_at or now)):
                raise _overlaps(priced.gpu_model)
            [rate] = query(
                "INSERT INTO tenants_rate (gpu_model, price_per_gpu_hour, starts_at, ends_at, created_by)"
                " VALUES (%s, %s, %s, %s, %s) RETURNING id",
                [gpu_model, price, begins_at, ends_at, actor],
            )
            facts = {"price_per_gpu_hour": str(price), "starts_at": rfc3339(begins_at), "ends_at": rfc3339(ends_at)}
            log.record("rate.set", f"rate {rate['id']} of {gpu_model}", None, facts)
    except IntegrityError as error:
        if not violates(error, "rate_no_overlap"):
            raise
        raise _overlaps(gpu_model) from error
    rate_id: int = rate["id"]
    return rate_id


def end_rate(rate_id: int) -> None:
    """End a rate now. Delete one that has not begun, and extend the previous one in its place, unless that was set
    with an end. An ended rate stays as it is."""
    with transaction.atomic():
        execute("LOCK TABLE tenants_rate IN SHARE ROW EXCLUSIVE MODE")
        rates = query("SELECT *, clock_timestamp() AS now FROM tenants_rate WHERE id = %s", [rate_id])
        if not rates:
            raise not_found(f"rate {rate_id}")
        [rate] = rates
        if rate["starts_at"] >= rate["now"]:
            execute("DELETE FROM tenants_rate WHERE id = %s", [rate_id])
            log.record("rate.end", _subject(rate), _facts(rate), None)
            _extend_previous(rate["gpu_model"], rate["starts_at"])
        elif rate["ends_at"] is None or rate["ends_at"] > rate["now"]:
            execute(
                "UPDATE tenants_rate SET ends_at = %s, ends_with_next = false WHERE id = %s", [rate["now"], rate_id]
            )
            log.record("rate.end", _subject(rate), _facts(rate), _facts({**rate, "ends_at": rate["now"]}))


def price_periods(gpu_models: Iterable[str]) -> list[PricePeriod]:
    """Return the prices of each model over time. Of several rates that match a model, the one with the longest name
    applies, and * if there is no other. Without a rate a model has no price."""
    rates = list(Rate.objects.order_by("starts_at"))
    return [
        period
        for model in gpu_models
        for period in _periods_of(
            model, sorted((r for r in rates if matches_model(r.gpu_model, model)), key=_specificity)
        )
    ]


def matches_model(word: str, gpu_model: str) -> bool:
    """Return whether a rate's name matches a model: `*`, or whole words of it, like `A100` in `NVIDIA
    A100-SXM4-80GB`."""
    pattern = rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])"
    return word == EVERY_MODEL or re.search(pattern, gpu_model.lower()) is not None


def _end_open(gpu_model: str, at: datetime) -> None:
    """End the rate in force without an end, or the last planned one, where a new one begins."""
    open_ones = query(
        "UPDATE tenants_rate SET ends_at = %s, ends_with_next = true WHERE lower(gpu_model) = lower(%s)"
        "   AND ends_at IS NULL AND starts_at < %s RETURNING *",
        [at, gpu_model, at],
    )
    for rate in open_ones:
        log.record("rate.change", _subject(rate), {"ends_at": None}, {"ends_at": rfc3339(at)})


def _extend_previous(gpu_model: str, at: datetime) -> None:
    """Extend the rate that a deleted one had ended, to the start of the next rate if there is one."""
    went_on = query(
        "UPDATE tenants_rate r SET ends_at = n.starts_at, ends_with_next = n.starts_at IS NOT NULL"
        "  FROM (SELECT min(starts_at) AS starts_at FROM tenants_rate"
        "         WHERE lower(gpu_model) = lower(%s) AND starts_at >= %s) n"
        " WHERE lower(r.gpu_model) = lower(%s) AND r.ends_at = %s AND r.ends_with_next RETURNING r.*",
        [gpu_model, at, gpu_model, at],
    )
    for rate in went_on:
        log.record("rate.change", _subject(rate), {"ends_at": rfc3339(at)}, {"ends_at": rfc3339(rate["ends_at"])})


def _closer_rate(gpu_model: str, begin: datetime, end: datetime) -> Rate | None:
    """Return a more specific rate that, in this time, prices a model that `gpu_model` also matches."""
    new = Rate(gpu_model=gpu_model, starts_at=begin)
    current = Rate.objects.filter(Q(ends_at=None) | Q(ends_at__gt=begin), starts_at__lt=end)
    closer = [rate for rate in current if _specificity(new)[:2] < _specificity(rate)[:2]]
    if not closer:
        return None
    models = rows(f"SELECT DISTINCT gpu_model FROM tenants_usageentry UNION {hook('gpu_models')}")
    # Including the name itself: a rate named by a part of it matches all its models.
    matching = [gpu_model, *(model for (model,) in models if matches_model(gpu_model, model))]
    return next((rate for rate in closer if any(matches_model(rate.gpu_model, model) for model in matching)), None)


def _overlaps(gpu_model: str) -> Problem:
    return Problem(
        409,
        "rate_overlaps",
        f"there is a rate of {gpu_model} for a part of that time, and what has been priced stays so",
        next_step="choose a time from now on, or end the planned rate first",
    )


def _subject(rate: Mapping[str, Any]) -> str:
    return f"rate {rate['id']} of {rate['gpu_model']}"


def _facts(rate: Mapping[str, Any]) -> dict[str, Any]:
    times = {name: rfc3339(rate[name]) for name in ("starts_at", "ends_at")}
    return {"price_per_gpu_hour": str(rate["price_per_gpu_hour"]), **times}


def _specificity(rate: Rate) -> tuple[int, str, datetime]:
    """Return the sort key: the longest name first, * last."""
    return (0 if rate.gpu_model == EVERY_MODEL else -len(rate.gpu_model), rate.gpu_model, rate.starts_at)


def _periods_of(gpu_model: str, rates: Sequence[Rate]) -> list[PricePeriod]:
    """Return periods without overlap: each rate fills the time that the rates before it leave free."""
    periods: list[PricePeriod] = []
    for rate in rates:
        free: list[tuple[datetime, datetime | None]] = [(rate.starts_at, rate.ends_at)]
        for period in periods:
            free = [part for begin, end in free for part in _subtract(begin, end, period)]
        periods += [PricePeriod(gpu_model, begin, end, rate.price_per_gpu_hour) for begin, end in free]
    return periods


def _subtract(begin: datetime, end: datetime | None, period: PricePeriod) -> list[tuple[datetime, datetime | None]]:
    """Return the parts of a time outside of a period."""
    if (period.ends_at is not None and period.ends_at <= begin) or (end is not None and end <= period.starts_at):
        return [(begin, end)]
    remaining: list[tuple[datetime, datetime | None]] = []
    if begin < period.starts_at:
        remaining.append((begin, period.starts_at))
    if period.ends_at is not None and (end is None or period.ends_at < end):
        remaining.append((period.ends_at, end))
    return remaining


def _check(gpu_model: str, price: Decimal) -> None:
    errors: list[FieldError] = []
    if not _NAME.fullmatch(gpu_model) or len(gpu_model) > 100:
        errors.append(FieldError("gpu_model", "invalid", "must be words as in the driver's name, like A100, or *"))
    if not (price.is_finite() and 0 <= price <= MAX_PRICE and price == round(price, 4)):
        message = f"must be from 0 to {MAX_PRICE} with at most 4 decimals"
        errors.append(FieldError("price_per_gpu_hour", "out_of_range", message))
    if errors:
        raise invalid(errors)
