"""REST for arrays: their elements, cancel of all or a part, retry."""

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
from jobs.actions import array_actions as elements
from jobs.actions import job_actions
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
    """`elements`: of an array only these, like `3-7,9`; without it all of the job."""

    elements: str | None = None


class RetryRequest(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`elements`: of an array `failed`, or numbers like `3-7,9` of those that have ended, however they did."""

    elements: str = elements.ALL_FAILED


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
        """At once if it waits, else its processes are stopped first. Harmless when repeated, or when it has ended.
        `elements` like `3-7,9`: of an array only these. The body may be left out."""
        wanted = read_body(request, CancelRequest)
        return action_response(job_id, job_actions.cancel(job_id, identity(request), wanted.elements))


class Retry(APIView):
    @documented(
        "Have a job that failed, or elements of an array that have ended, run again",
        tag="jobs",
        who="own jobs: member, else owner",
        body=RetryRequest,
        answer=Acted,
        operation_id="jobs_retry",
        refusals=(400, 401, 403, 404, 409, 413, 422, 429),
    )
    def post(self, request: Request, job_id: int) -> Response:
        """A job that failed, was cancelled or was preempted: by another attempt, with the same id and queue time, not
        before its `not_before`, with all its `max_retries`, and what it depends on looked at anew if it never started.
        Of an array those elements that failed, or with `elements` like `3-7,9` these, if they have ended; it is open
        again."""
        wanted = read_body(request, RetryRequest)
        return action_response(job_id, job_actions.retry(job_id, identity(request), wanted.elements))


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
        """Those too that are no jobs yet: an element becomes a job, with an id, when it is placed. A job that is no
        array has none."""
        count = visible_job(request, job_id)["array_count"]
        given = read_query(request)
        limit = page_limit(given)
        if count is None:
            return Response({"items": [], "next_cursor": None})
        states = states_of(given["state"]) if "state" in given else list(JobState)
        items = list_elements(job_id, multirange(_requested_ranges(given, count)), states, limit)
        return Response(paged(items, limit, "elements", "index"))


def _requested_ranges(given: dict[str, str], count: int) -> Ranges:
    """The numbers that are asked for, after those of the page before."""
    try:
        chosen = parse_ranges(given["index"], count) if "index" in given else ((0, count),)
    except ValueError as error:
        raise invalid([FieldError("index", "invalid", str(error))]) from error
    last = cursor_number(given, "elements")
    start = 0 if last is None else last + 1
    return tuple((max(first, start), end) for first, end in chosen if end > start)
