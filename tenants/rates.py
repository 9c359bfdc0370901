"""What a GPU-hour costs and from when to when: rates are set for what is to come, and end; the past keeps its price."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime
from decimal import Decimal
from typing import NamedTuple

from django.db import IntegrityError, transaction

from gpusched.lib import audit
from gpusched.lib.problems import Problem, invalid, not_found
from gpusched.lib.sql import execute, query, rows
from gpusched.lib.times import rfc3339
from gpusched.protocol.jobs import FieldError
from tenants.models import Rate

EVERY_MODEL = "*"
MOST_PRICE = Decimal(1_000_000)
_NAME = re.compile(r"\*|[\w.+/()-]+( [\w.+/()-]+)*")


class Piece(NamedTuple):
    """One model, as the ledger names it, costs so much for a GPU-hour within this time."""

    gpu_model: str
    starts_at: datetime
    ends_at: datetime | None
    price: Decimal


def set_rate(gpu_model: str, price: Decimal, starts_at: datetime | None, ends_at: datetime | None, actor: str) -> int:
    """A new rate from `starts_at` (None: now) on; gives its id. One that is in force without an end ends there.

    What has been priced stays so: 409 for a time, in the past or with a planned end, for which the model has a rate."""
    _check(gpu_model, price)
    try:
        with transaction.atomic():
            [(now,)] = rows("SELECT clock_timestamp()")
            begins_at = starts_at or now
            if ends_at is not None and ends_at <= begins_at:
                raise invalid([FieldError("ends_at", "out_of_range", "must be after starts_at")])
            if begins_at >= now:  # for the past there is only what has no rate yet
                execute(
                    "UPDATE tenants_rate SET ends_at = %s WHERE lower(gpu_model) = lower(%s)"
                    "   AND ends_at IS NULL AND starts_at < %s",
                    [begins_at, gpu_model, begins_at],
                )
            [made] = query(
                "INSERT INTO tenants_rate (gpu_model, price_per_gpu_hour, starts_at, ends_at, created_by)"
                " VALUES (%s, %s, %s, %s, %s) RETURNING id",
                [gpu_model, price, begins_at, ends_at, actor],
            )
            facts = {"price_per_gpu_hour": str(price), "starts_at": rfc3339(begins_at), "ends_at": rfc3339(ends_at)}
            audit.record("rate.set", f"rate {made['id']} of {gpu_model}", None, facts)
    except IntegrityError as error:
        raise Problem(
            409,
            "rate_overlaps",
            f"there is a rate of {gpu_model} for a part of that time, and what has been priced stays so",
            next_step="choose a time from now on, or end the planned rate first",
        ) from error
    made_id: int = made["id"]
    return made_id


def end_rate(rate_id: int) -> None:
    """Ends a rate now; one that has not begun is taken back, and the one before goes on in its place. Harmless when it
    has ended."""
    with transaction.atomic():
        if not query("SELECT 1 FROM tenants_rate WHERE id = %s FOR UPDATE", [rate_id]):
            raise not_found(f"rate {rate_id}")
        taken_back = query(
            "DELETE FROM tenants_rate WHERE id = %s AND starts_at >= clock_timestamp()"
            " RETURNING gpu_model, starts_at, ends_at",
            [rate_id],
        )
        for rate in taken_back:
            execute(
                "UPDATE tenants_rate SET ends_at = %s WHERE lower(gpu_model) = lower(%s) AND ends_at = %s",
                [rate["ends_at"], rate["gpu_model"], rate["starts_at"]],
            )
        execute(
            "UPDATE tenants_rate SET ends_at = clock_timestamp()"
            " WHERE id = %s AND (ends_at IS NULL OR ends_at > clock_timestamp())",
            [rate_id],
        )
        audit.record("rate.end", f"rate {rate_id}", {}, None)


def pieces(gpu_models: Iterable[str]) -> list[Piece]:
    """What each model costs when. Of several rates that name a model the one with the longest name counts, and * where
    there is none; a model has no price in a time without any."""
    known = list(Rate.objects.order_by("starts_at"))
    return [
        piece
        for model in gpu_models
        for piece in _cut(model, sorted((r for r in known if is_named(r.gpu_model, model)), key=_closeness))
    ]


def is_named(word: str, gpu_model: str) -> bool:
    """`A100` names `NVIDIA A100-SXM4-80GB`: equal or a whole word of it, as limits per model are understood."""
    whole = rf"(?<![a-z0-9]){re.escape(word.lower())}(?![a-z0-9])"
    return word == EVERY_MODEL or re.search(whole, gpu_model.lower()) is not None


def _closeness(rate: Rate) -> tuple[int, str, datetime]:
    """The longest name first, * last."""
    return (0 if rate.gpu_model == EVERY_MODEL else -len(rate.gpu_model), rate.gpu_model, rate.starts_at)


def _cut(gpu_model: str, rates: Sequence[Rate]) -> list[Piece]:
    """Pieces that do not overlap: each rate fills what those before it have left."""
    found: list[Piece] = []
    for rate in rates:
        free: list[tuple[datetime, datetime | None]] = [(rate.starts_at, rate.ends_at)]
        for taken in found:
            free = [part for begin, end in free for part in _without(begin, end, taken)]
        found += [Piece(gpu_model, begin, end, rate.price_per_gpu_hour) for begin, end in free]
    return found


def _without(begin: datetime, end: datetime | None, taken: Piece) -> list[tuple[datetime, datetime | None]]:
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
    if not (price.is_finite() and 0 <= price <= MOST_PRICE and price == round(price, 4)):
        message = f"must be from 0 to {MOST_PRICE} with at most 4 decimals"
        found.append(FieldError("price_per_gpu_hour", "out_of_range", message))
    if found:
        raise invalid(found)
