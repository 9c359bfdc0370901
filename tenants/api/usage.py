"""REST for use and money: what a tenant used and what it costs, as JSON and CSV, and the rates that it is priced by."""

import csv
import io
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import (
    PAGED,
    JsonRenderer,
    decode_cursor,
    encode_cursor,
    page_limit,
    parse_moment,
    read_body,
    read_query,
)
from gpusched.lib.times import rfc3339
from gpusched.protocol.csv_cells import as_text
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.billing import RateData, Usage
from gpusched.protocol.rest.jobs import Page
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity
from tenants.billing import rates, usage_report
from tenants.models import Rate

PARAMETERS = {
    "from": "RFC 3339 or a day, UTC; default: the first of this month; with an earlier `to`, of the month that it ends",
    "to": "the same, not included; default: now",
    "by": f"{', '.join(usage_report.BY)}; default day",
    **PAGED,
    "format": "json, or csv: all rows at once (also by Accept: text/csv)",
}
MAX_ROWS = 100_000


class CsvRenderer(BaseRenderer):
    """A header line and one line for each item. What a spreadsheet would take for a formula is text."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        if not isinstance(data, dict) or "items" not in data:
            return msgspec.json.encode(data)  # a refusal, which is problem+json whatever was asked for
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow([data["by"], *_COLUMNS])
        for item in data["items"]:
            writer.writerow([as_text(item[name]) for name in ("key", *_COLUMNS)])
        return text.getvalue().encode()


_COLUMNS = (
    "name", "user", "gpu_seconds", "gpu_hours", "running_gpu_seconds", "refunded_gpu_seconds", "unpriced_gpu_seconds",
    "cost", "refunded_cost", "jobs",
)  # fmt: skip


class TenantUsage(APIView):
    renderer_classes = [JsonRenderer, CsvRenderer]

    @documented(
        "What a tenant used, and what it costs",
        tag="usage",
        who="viewer",
        answer=Usage,
        parameters=PARAMETERS,
        media_types=("application/json", "text/csv"),
        refusals=(400, 401, 403, 404, 406),
    )
    def get(self, request: Request, name: str) -> Response:
        """Running jobs are counted to now. A day is one of UTC. Of `total`, and of each item by its `key`:
        `gpu_seconds`, of which `running_gpu_seconds` are not in the ledger yet, `refunded_gpu_seconds` cost nothing and
        `unpriced_gpu_seconds` have no rate. `format=csv` (or `Accept: text/csv`) has all rows."""
        given = read_query(request)
        tenant = find_tenant(name, identity(request))
        by = given.get("by", "day")
        if by not in usage_report.BY:
            raise invalid([FieldError("by", "unknown_value", f"must be one of {', '.join(usage_report.BY)}")])
        start, end = _span(given)
        after = _after(given, by)
        if given.get("format", "json") not in ("json", "csv"):
            raise invalid([FieldError("format", "unknown_value", "must be json or csv")])
        is_csv = getattr(request, "accepted_renderer", None) is not None and request.accepted_renderer.format == "csv"
        limit = MAX_ROWS + 1 if is_csv else page_limit(given)
        found = usage_report.report([tenant.pk], start, end, by, after=after, limit=limit)
        if is_csv and len(found.rows) > MAX_ROWS:
            raise invalid([FieldError("from", "out_of_range", f"gives more than {MAX_ROWS} rows: ask for less time")])
        is_full = len(found.rows) == limit
        items = [{**row, "key": str(row["key"])} for row in found.rows]
        return Response(
            {
                "tenant": tenant.name,
                "start_at": rfc3339(start),
                "end_at": rfc3339(found.end_at),
                "by": by,
                "currency": settings.ENV.currency,
                "total": found.total,
                "items": items,
                "next_cursor": encode_cursor(f"usage by {by}", found.rows[-1]["key"]) if is_full else None,
            }
        )


class NewRate(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`gpu_model`: words of the driver's name, like A100, or * for every other model; `starts_at` null: now."""

    gpu_model: str
    price_per_gpu_hour: float
    starts_at: str | None = None
    ends_at: str | None = None


class Rates(APIView):
    @documented(
        "What GPU-hours cost, by model and time",
        tag="usage",
        who="anybody",
        answer=Page[RateData],
        refusals=(400, 401, 403),
    )
    def get(self, request: Request) -> Response:
        """Not paged."""
        return Response({"items": [_rate(rate) for rate in Rate.objects.all()], "next_cursor": None})

    @documented(
        "Set a rate from now or a later time on",
        tag="usage",
        who="admin",
        body=NewRate,
        answer=RateData,
        status=201,
        refusals=(400, 401, 403, 409, 413, 415),
    )
    def post(self, request: Request) -> Response:
        """`gpu_model` is words of the driver's name, or `*` for every other model; `price_per_gpu_hour` has at most 4
        decimals; `starts_at` null: now. A rate without an end ends where the next of its model begins. 409 for a time
        that has a rate already."""
        who = identity(request)
        who.require_admin()
        wanted = read_body(request, NewRate)
        moments = {"starts_at": wanted.starts_at, "ends_at": wanted.ends_at}
        times = {name: None if text is None else parse_moment(name, text) for name, text in moments.items()}
        made = rates.set_rate(
            wanted.gpu_model,
            Decimal(str(wanted.price_per_gpu_hour)),
            times["starts_at"],
            times["ends_at"],
            who.username,
        )
        return Response(_rate(Rate.objects.get(pk=made)), status=201)


class OneRate(APIView):
    @documented("End a rate now, or take a planned one back", tag="usage", who="admin", status=204)
    def delete(self, request: Request, rate_id: int) -> Response:
        identity(request).require_admin()
        rates.end_rate(rate_id)
        return Response(status=204)


def _span(given: dict[str, str]) -> tuple[datetime, datetime]:
    now, least = timezone.now(), timedelta(microseconds=1)
    end = parse_moment("to", given["to"], spare=least) if "to" in given else now
    month = (min(end, now) - least).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    start = parse_moment("from", given["from"]) if "from" in given else month
    if start > end:
        raise invalid([FieldError("from", "out_of_range", "must not be after to")])
    return start, end


def _after(given: dict[str, str], by: str) -> usage_report.Key | None:
    if "cursor" not in given:
        return None
    if by == "job":
        return decode_cursor(given["cursor"], "usage by job", tuple[int])[0]
    return decode_cursor(given["cursor"], f"usage by {by}", tuple[str])[0]


def _rate(rate: Rate) -> dict[str, Any]:
    return {
        "id": rate.pk,
        "gpu_model": rate.gpu_model,
        "price_per_gpu_hour": float(rate.price_per_gpu_hour),
        "currency": settings.ENV.currency,
        "starts_at": rfc3339(rate.starts_at),
        "ends_at": rfc3339(rate.ends_at),
        "created_by": rate.created_by,
    }
