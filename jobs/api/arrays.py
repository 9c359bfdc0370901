"""REST for arrays: list elements, cancel all or some of them, retry."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, read_body, read_query
from gpusched.protocol.arrays import Ranges, multirange, parse_ranges
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.arrays import Element
from gpusched.protocol.rest.jobs import Acted, Page
from gpusched.protocol.states import JobState
from jobs.actions import job_actions
from jobs.actions.array_actions import ALL_FAILED
from jobs.api.jobs import action_response, visible_job
from jobs.arrays.elements import list_elements
from jobs.listing.job_list import states_of
from tenants.auth.identity import identity

ELEMENT_FILTERS = {
    "state": "states separated by commas; also waiting, live, final",
    "index": "numbers of elements like 3-7,9",
    **PAGED,
}


class CancelRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`elements`: only these elements of an array, like `3-7,9`; by default the entire job."""

    elements: str | None = None


class RetryRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`elements` of an array: `failed`, or numbers like `3-7,9` of elements that have ended in any state."""

    elements: str = ALL_FAILED


class Cancel(APIView):
    @documented(
        "Cancel a job, or elements of an array; their processes are stopped first",
        tag="jobs",
        who="own jobs: member, else owner",
        body=CancelRequest,
        answer=Acted,
        operation_id="jobs_cancel",
        refusals=(400, 401, 403, 404, 409, 413),
    )
    def post(self, request: Request, job_id: int) -> Response:
        """A waiting job ends at once; the processes of a live one are stopped first. Harmless when repeated or when the
        job has ended. `elements` like `3-7,9`: only these elements of an array. The body is optional."""
        body = read_body(request, CancelRequest)
        return action_response(job_id, job_actions.cancel(job_id, identity(request), body.elements))


class Retry(APIView):
    @documented(
        "Rerun a job that failed, or elements of an array that have ended",
        tag="jobs",
        who="own jobs: member, else owner",
        body=RetryRequest,
        answer=Acted,
        operation_id="jobs_retry",
        refusals=(400, 401, 403, 404, 409, 413, 422, 429),
    )
    def post(self, request: Request, job_id: int) -> Response:
        """A failed, cancelled or preempted job gets a new attempt, with the same id and queue time, not before its
        `not_before`, and with all its `max_retries`. If it never started, its dependencies are checked again. Of an
        array, the failed elements run again, or with `elements` like `3-7,9` those of them that have ended; the array
        is open again."""
        body = read_body(request, RetryRequest)
        return action_response(job_id, job_actions.retry(job_id, identity(request), body.elements))


class Elements(APIView):
    @documented(
        "List the elements of an array, by their numbers",
        tag="jobs",
        who="viewer",
        answer=Page[Element],
        parameters=ELEMENT_FILTERS,
        refusals=(400, 401, 403, 404),
    )
    def get(self, request: Request, job_id: int) -> Response:
        """Includes elements that are no jobs yet: an element becomes a job, with an id, when it is placed. A job that
        is not an array has none."""
        count = visible_job(request, job_id)["array_count"]
        params = read_query(request)
        limit = page_limit(params)
        if count is None:
            return Response({"items": [], "next_cursor": None})
        states = states_of(params["state"]) if "state" in params else list(JobState)
        items = list_elements(job_id, multirange(_requested_ranges(params, count)), states, limit)
        return Response(paged(items, limit, "elements", "index"))


def _requested_ranges(params: dict[str, str], count: int) -> Ranges:
    """Return the requested numbers that follow the previous page."""
    try:
        chosen = parse_ranges(params["index"], count) if "index" in params else ((0, count),)
    except ValueError as error:
        raise invalid([FieldError("index", "invalid", str(error))]) from error
    last = cursor_number(params, "elements")
    start = 0 if last is None else last + 1
    return tuple((max(first, start), end) for first, end in chosen if end > start)
