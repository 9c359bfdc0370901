"""What a GPU-hour costs and from when to when: rates are set for what is to come, and end; the past keeps its price."""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from django.db import IntegrityError, transaction
from django.db.models import Q

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.db.sql import execute, query, rows, violates
from gpusched.lib.hooks import hook
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from tenants.models import Rate

EVERY_MODEL = "*"
MAX_PRICE = Decimal(1_000_000)
_NAME = re.compile(r"\*|[\w.+/()-]+( [\w.+/()-]+)*")


class PricePeriod(NamedTuple):
    """One model, as the ledger names it, costs so much for a GPU-hour within this time."""

    gpu_model: str
    starts_at: datetime
    ends_at: datetime | None
    price: Decimal


def set_rate(gpu_model: str, price: Decimal, starts_at: datetime | None, ends_at: datetime | None, actor: str) -> int:
    """A new rate from `starts_at` (None: now) on; gives its id. One that is in force without an end ends there.

    What has been priced stays so: 409 for a time, in the past or with a planned end, for which the model has a rate,
    and for the past also where a rate of other words prices a model that these name closer."""
    _check(gpu_model, price)
    try:
        with transaction.atomic():
            execute("LOCK TABLE tenants_rate IN SHARE ROW EXCLUSIVE MODE")  # what is looked at stays so
            [(now,)] = rows("SELECT clock_timestamp()")
            begins_at = starts_at or now
            if ends_at is not None and ends_at <= begins_at:
                raise invalid([FieldError("ends_at", "out_of_range", "must be after starts_at")])
            if begins_at >= now:  # for the past there is only what has no rate yet
                _end_open(gpu_model, begins_at)
            elif priced := _priced_else(gpu_model, begins_at, min(now, ends_at or now)):
                raise _overlaps(priced.gpu_model)
            [made] = query(
                "INSERT INTO tenants_rate (gpu_model, price_per_gpu_hour, starts_at, ends_at, created_by)"
                " VALUES (%s, %s, %s, %s, %s) RETURNING id",
                [gpu_model, price, begins_at, ends_at, actor],
            )
            facts = {"price_per_gpu_hour": str(price), "starts_at": rfc3339(begins_at), "ends_at": rfc3339(ends_at)}
            log.record("rate.set", f"rate {made['id']} of {gpu_model}", None, facts)
    except IntegrityError as error:
        if not violates(error, "rate_no_overlap"):
            raise
        raise _overlaps(gpu_model) from error
    made_id: int = made["id"]
    return made_id


def end_rate(rate_id: int) -> None:
    """Ends a rate now; one that has not begun is taken back, and the one before goes on in its place, unless it was set
    with an end. Harmless when it has ended."""
    with transaction.atomic():
        execute("LOCK TABLE tenants_rate IN SHARE ROW EXCLUSIVE MODE")
        found = query("SELECT *, clock_timestamp() AS now FROM tenants_rate WHERE id = %s", [rate_id])
        if not found:
            raise not_found(f"rate {rate_id}")
        [rate] = found
        if rate["starts_at"] >= rate["now"]:
            execute("DELETE FROM tenants_rate WHERE id = %s", [rate_id])
            log.record("rate.end", _subject(rate), _facts(rate), None)
            _go_on(rate["gpu_model"], rate["starts_at"])
        elif rate["ends_at"] is None or rate["ends_at"] > rate["now"]:
            execute(
                "UPDATE tenants_rate SET ends_at = %s, ends_with_next = false WHERE id = %s", [rate["now"], rate_id]
            )
            log.record("rate.end", _subject(rate), _facts(rate), _facts({**rate, "ends_at": rate["now"]}))


def price_periods(gpu_models: Iterable[str]) -> list[PricePeriod]:
    """What each model costs when. Of several rates that name a model the one with the longest name counts, and * where
    there is none; a model has no price in a time without any."""
    known = list(Rate.objects.order_by("starts_at"))
    return [
        piece
        for model in gpu_models
        for piece in _cut(model, sorted((r for r in known if matches_model(r.gpu_model, model)), key=_specificity))
    ]


def matches_model(word: str, gpu_model: str) -> bool:
    """`A100` names `NVIDIA A100-SXM4-80GB`: equal or a whole word of it, as limits per model are understood."""
    whole = rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])"
    return word == EVERY_MODEL or re.search(whole, gpu_model.lower()) is not None


def _end_open(gpu_model: str, at: datetime) -> None:
    """The rate in force without an end, or the last planned one, ends where another begins."""
    open_ones = query(
        "UPDATE tenants_rate SET ends_at = %s, ends_with_next = true WHERE lower(gpu_model) = lower(%s)"
        "   AND ends_at IS NULL AND starts_at < %s RETURNING *",
        [at, gpu_model, at],
    )
    for rate in open_ones:
        log.record("rate.change", _subject(rate), {"ends_at": None}, {"ends_at": rfc3339(at)})


def _go_on(gpu_model: str, at: datetime) -> None:
    """The rate that ended for the one that began then, now gone, ends where the one after that begins, if there is."""
    went_on = query(
        "UPDATE tenants_rate r SET ends_at = n.starts_at, ends_with_next = n.starts_at IS NOT NULL"
        "  FROM (SELECT min(starts_at) AS starts_at FROM tenants_rate"
        "         WHERE lower(gpu_model) = lower(%s) AND starts_at >= %s) n"
        " WHERE lower(r.gpu_model) = lower(%s) AND r.ends_at = %s AND r.ends_with_next RETURNING r.*",
        [gpu_model, at, gpu_model, at],
    )
    for rate in went_on:
        log.record("rate.change", _subject(rate), {"ends_at": rfc3339(at)}, {"ends_at": rfc3339(rate["ends_at"])})


def _priced_else(gpu_model: str, begin: datetime, end: datetime) -> Rate | None:
    """A rate of other words that prices, in this time, a model that these words name and would count for instead."""
    new = Rate(gpu_model=gpu_model, starts_at=begin)
    there = Rate.objects.filter(Q(ends_at=None) | Q(ends_at__gt=begin), starts_at__lt=end)
    outdone = [rate for rate in there if _specificity(new)[:2] < _specificity(rate)[:2]]
    if not outdone:
        return None
    models = rows(f"SELECT DISTINCT gpu_model FROM tenants_usageentry UNION {hook('gpu_models')}")
    # A word that is a part of this one names all that this one does.
    named = [gpu_model, *(model for (model,) in models if matches_model(gpu_model, model))]
    return next((rate for rate in outdone if any(matches_model(rate.gpu_model, model) for model in named)), None)


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
    """The longest name first, * last."""
    return (0 if rate.gpu_model == EVERY_MODEL else -len(rate.gpu_model), rate.gpu_model, rate.starts_at)


def _cut(gpu_model: str, rates: Sequence[Rate]) -> list[PricePeriod]:
    """Pieces that do not overlap: each rate fills what those before it have left."""
    found: list[PricePeriod] = []
    for rate in rates:
        free: list[tuple[datetime, datetime | None]] = [(rate.starts_at, rate.ends_at)]
        for taken in found:
            free = [part for begin, end in free for part in _without(begin, end, taken)]
        found += [PricePeriod(gpu_model, begin, end, rate.price_per_gpu_hour) for begin, end in free]
    return found


def _without(begin: datetime, end: datetime | None, taken: PricePeriod) -> list[tuple[datetime, datetime | None]]:
    """What is left of a time beside a piece."""
    if (taken.ends_at is not None and taken.ends_at <= begin) or (end is not None and end <= taken.starts_at):
        return [(begin, end)]
    left: list[tuple[datetime, datetime | None]] = []
    if begin < taken.starts_at:
        left.append((begin, taken.starts_at))
    if taken.ends_at is not None and (end is None or taken.ends_at < end):
        left.append((taken.ends_at, end))
    return left


def _check(gpu_model: str, price: Decimal) -> None:
    found: list[FieldError] = []
    if not _NAME.fullmatch(gpu_model) or len(gpu_model) > 100:
        found.append(FieldError("gpu_model", "invalid", "must be words as in the driver's name, like A100, or *"))
    if not (price.is_finite() and 0 <= price <= MAX_PRICE and price == round(price, 4)):
        message = f"must be from 0 to {MAX_PRICE} with at most 4 decimals"
        found.append(FieldError("price_per_gpu_hour", "out_of_range", message))
    if found:
        raise invalid(found)
