"""REST for the stored readings of a device: samples and 5-minute roll-ups."""

from datetime import UTC, datetime, timedelta

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid, not_found
from gpusched.lib.api.rest import PAGED, cursor_number, encode_cursor, page_limit, parse_moment, read_query
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.records import RollupPage, SamplePage
from nodes.telemetry import samples

EPOCH, MICROSECOND = datetime(1970, 1, 1, tzinfo=UTC), timedelta(microseconds=1)
# The default of `since`.
DEFAULT_AGE = {"raw": timedelta(hours=1), "5m": timedelta(days=1)}
PARAMETERS = {
    "resolution": "raw (samples, the default) or 5m (roll-ups)",
    "since": "RFC 3339; default: an hour ago, for roll-ups a day ago",
    **PAGED,
}


class Samples(APIView):
    @documented(
        "List the stored readings of a device, oldest first",
        tag="nodes",
        who="anybody",
        answer=(SamplePage, RollupPage),
        parameters=PARAMETERS,
    )
    def get(self, request: Request, device_id: int) -> Response:
        """`raw` items have `cell` (`busy held_idle free unavailable`, for `seconds` before `at`) and the reading. `5m`
        items start at `at` and have `…_min`, `…_mean` and `…_max` of each value. Unknown values are null."""
        params = read_query(request)
        resolution = params.get("resolution", "raw")
        if resolution not in DEFAULT_AGE:
            raise invalid([FieldError("resolution", "unknown_value", "must be raw or 5m")])
        limit = page_limit(params)
        since = _since(params, datetime.now(UTC) - DEFAULT_AGE[resolution])
        if not query("SELECT 1 FROM nodes_device WHERE id = %s", [device_id]):
            raise not_found(f"GPU {device_id}")
        rows = samples.history(device_id, resolution, since, limit)
        more = encode_cursor("samples", (rows[-1]["at"] - EPOCH) // MICROSECOND) if len(rows) == limit else None
        items = [{**row, "at": rfc3339(row["at"])} for row in rows]
        return Response({"resolution": resolution, "items": items, "next_cursor": more})


def _since(params: dict[str, str], default: datetime) -> datetime:
    if (last := cursor_number(params, "samples")) is not None:
        try:
            return EPOCH + (last + 1) * MICROSECOND
        except OverflowError as error:
            raise invalid([FieldError("cursor", "invalid", "is not a cursor of this list")]) from error
    return parse_moment("since", params["since"]) if "since" in params else default
