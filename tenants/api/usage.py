"""REST for billing: the use of a tenant and its cost, as JSON and CSV, and rates."""

import csv
import io
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import msgspec
from django.conf import settings
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
from gpusched.lib.db.sql import database_now
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
    "from": "RFC 3339 or a day, UTC; default: the first of this month, or of the month of `to`",
    "to": "the same, not included; default: now",
    "by": f"{', '.join(usage_report.BY)}; default day",
    **PAGED,
    "format": "json, or csv: all rows at once (also by Accept: text/csv)",
}
MAX_ROWS = 100_000


class CsvRenderer(BaseRenderer):
    """CSV: a header line and a line per item. Text that a spreadsheet would read as a formula is escaped."""

    media_type = "text/csv"
    format = "csv"
    charset = "utf-8"

    def render(self, data: Any, accepted_media_type: str | None = None, renderer_context: Any = None) -> bytes:
        if not isinstance(data, dict) or "items" not in data:
            return msgspec.json.encode(data)  # an error, which is always problem+json
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
        "Read the use of a tenant and its cost",
        tag="usage",
        who="viewer",
        answer=Usage,
        parameters=PARAMETERS,
        media_types=("application/json", "text/csv"),
        refusals=(400, 401, 403, 404, 406),
    )
    def get(self, request: Request, name: str) -> Response:
        """Running jobs are counted until now. Days are in UTC. `total`, and each item by its `key`, has `gpu_seconds`,
        of which `running_gpu_seconds` are not in the ledger yet, `refunded_gpu_seconds` cost nothing and
        `unpriced_gpu_seconds` have no rate. `format=csv` (or `Accept: text/csv`) returns all rows."""
        params = read_query(request)
        tenant = find_tenant(name, identity(request))
        by = params.get("by", "day")
        if by not in usage_report.BY:
            raise invalid([FieldError("by", "unknown_value", f"must be one of {', '.join(usage_report.BY)}")])
        start, end = _span(params)
        after = _after(params, by)
        if params.get("format", "json") not in ("json", "csv"):
            raise invalid([FieldError("format", "unknown_value", "must be json or csv")])
        is_csv = getattr(request, "accepted_renderer", None) is not None and request.accepted_renderer.format == "csv"
        limit = MAX_ROWS + 1 if is_csv else page_limit(params)
        report = usage_report.report([tenant.pk], start, end, by, after=after, limit=limit)
        if is_csv and len(report.rows) > MAX_ROWS:
            raise invalid(
                [FieldError("from", "out_of_range", f"selects more than {MAX_ROWS} rows: use a shorter time")]
            )
        is_full = len(report.rows) == limit
        items = [{**row, "key": str(row["key"])} for row in report.rows]
        return Response(
            {
                "tenant": tenant.name,
                "start_at": rfc3339(start),
                "end_at": rfc3339(report.end_at),
                "by": by,
                "currency": settings.ENV.currency,
                "total": report.total,
                "items": items,
                "next_cursor": encode_cursor(f"usage by {by}", report.rows[-1]["key"]) if is_full else None,
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
        "List the prices of GPU-hours, by model and time",
        tag="usage",
        who="anybody",
        answer=Page[RateData],
        refusals=(400, 401, 403),
    )
    def get(self, request: Request) -> Response:
        """Not paged."""
        return Response({"items": [_rate(rate) for rate in Rate.objects.all()], "next_cursor": None})

    @documented(
        "Set a rate from now, or from a later time on",
        tag="usage",
        who="admin",
        body=NewRate,
        answer=RateData,
        status=201,
        refusals=(400, 401, 403, 409, 413, 415),
    )
    def post(self, request: Request) -> Response:
        """`gpu_model`: words of the driver's name, or `*` for every other model. `price_per_gpu_hour` has at most 4
        decimals. `starts_at` null: now. A rate without an end ends where the next of its model begins. 409 for a time
        that already has a rate."""
        caller = identity(request)
        caller.require_admin()
        fields = read_body(request, NewRate)
        moments = {"starts_at": fields.starts_at, "ends_at": fields.ends_at}
        times = {name: None if text is None else parse_moment(name, text) for name, text in moments.items()}
        rate_id = rates.set_rate(
            fields.gpu_model,
            Decimal(str(fields.price_per_gpu_hour)),
            times["starts_at"],
            times["ends_at"],
            caller.username,
        )
        return Response(_rate(Rate.objects.get(pk=rate_id)), status=201)


class OneRate(APIView):
    @documented("End a rate now, or delete a planned one", tag="usage", who="admin", status=204)
    def delete(self, request: Request, rate_id: int) -> Response:
        identity(request).require_admin()
        rates.end_rate(rate_id)
        return Response(status=204)


def _span(params: dict[str, str]) -> tuple[datetime, datetime]:
    now, tick = database_now(), timedelta(microseconds=1)
    end = parse_moment("to", params["to"], spare=tick) if "to" in params else now
    month = (min(end, now) - tick).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    start = parse_moment("from", params["from"]) if "from" in params else month
    if start > end:
        raise invalid([FieldError("from", "out_of_range", "must not be after to")])
    return start, end


def _after(params: dict[str, str], by: str) -> usage_report.Key | None:
    if "cursor" not in params:
        return None
    if by == "job":
        return decode_cursor(params["cursor"], "usage by job", tuple[int])[0]
    return decode_cursor(params["cursor"], f"usage by {by}", tuple[str])[0]


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
