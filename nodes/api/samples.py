"""REST for the kept readings of a device: samples and 5-minute roll-ups."""

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
# Without `since`: so much of the past.
LATELY = {"raw": timedelta(hours=1), "5m": timedelta(days=1)}
PARAMETERS = {
    "resolution": "raw (samples, the default) or 5m (roll-ups)",
    "since": "RFC 3339; default: an hour ago, of roll-ups a day",
    **PAGED,
}


class Samples(APIView):
    @documented(
        "Read the kept readings of a device, oldest first",
        tag="nodes",
        who="anybody",
        answer=(SamplePage, RollupPage),
        parameters=PARAMETERS,
    )
    def get(self, request: Request, device_id: int) -> Response:
        """`raw` items have `cell` (`busy held_idle free unavailable`, for so many `seconds` before) and the reading;
        those of `5m` begin at `at`, and have `…_min`, `…_mean` and `…_max` of each; null where unknown."""
        given = read_query(request)
        resolution = given.get("resolution", "raw")
        if resolution not in LATELY:
            raise invalid([FieldError("resolution", "unknown_value", "must be raw or 5m")])
        limit = page_limit(given)
        since = _since(given, datetime.now(UTC) - LATELY[resolution])
        if not query("SELECT 1 FROM nodes_device WHERE id = %s", [device_id]):
            raise not_found(f"GPU {device_id}")
        found = samples.history(device_id, resolution, since, limit)
        more = encode_cursor("samples", (found[-1]["at"] - EPOCH) // MICROSECOND) if len(found) == limit else None
        items = [{**row, "at": rfc3339(row["at"])} for row in found]
        return Response({"resolution": resolution, "items": items, "next_cursor": more})


def _since(given: dict[str, str], default: datetime) -> datetime:
    if (last := cursor_number(given, "samples")) is not None:
        try:
            return EPOCH + (last + 1) * MICROSECOND
        except OverflowError as error:
            raise invalid([FieldError("cursor", "invalid", "is not a cursor that this server gave")]) from error
    return parse_moment("since", given["since"]) if "since" in given else default
