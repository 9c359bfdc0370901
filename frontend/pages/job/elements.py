"""The elements of an array: a filtered page of them, and cancel and retry of a selection."""

import re
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.ui.page import page, perform
from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.db.sql import Row
from gpusched.protocol import arrays
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.states import JobState
from jobs.actions import job_actions
from jobs.arrays.elements import list_elements
from jobs.listing.job_list import states_of
from tenants.auth.identity import Identity

ON_A_PAGE = 50
_STATES = (("waiting", "waiting"), ("live", "on nodes"), ("final", "ended"), *((s, s) for s in JobState))
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


def elements_tab(request: HttpRequest, job: Row) -> dict[str, Any]:
    """Return a page of elements that match `state` and `index` of the URL, from number `from` on."""
    filters = {name: text for name in ("state", "index") if (text := request.GET.get(name, "").strip())}
    context = {"filters": filters, "states": _STATES, "failed": _failed(job), "elements": [], "refused": ""}
    try:
        states = states_of(filters["state"]) if "state" in filters else list(JobState)
        chosen = (
            arrays.parse_ranges(filters["index"], job["array"]["count"]) if "index" in filters else ((0, 2**31 - 1),)
        )
    except Problem as problem:
        return {**context, "refused": problem.errors[0].message}
    except ValueError as error:
        return {**context, "refused": str(error)}
    start = int(match[0]) if (match := _NUMBER.fullmatch(request.GET.get("from", ""))) else 0
    remaining = tuple((max(first, start), end) for first, end in chosen if end > start)
    elements = list_elements(job["id"], arrays.multirange(remaining), states, ON_A_PAGE + 1)
    visible, following = elements[:ON_A_PAGE], elements[ON_A_PAGE:]
    more = urlencode({"tab": "elements", **filters, "from": following[0]["index"]}) if following else ""
    first = urlencode({"tab": "elements", **filters}) if start else ""
    return {**context, "elements": visible, "more": more, "first": first}


def _failed(job: Row) -> int:
    """Return the number of elements that a retry would run again."""
    by: dict[str, int] = job["array"]["by_state"]
    return by.get("failed", 0) + by.get("preempted", 0)


_VERBS = {"cancel": job_actions.cancel, "retry": job_actions.retry}


@require_POST
@page
def act_on_elements(request: HttpRequest, identity: Identity, job_id: int, verb: str) -> HttpResponse:
    """Cancel or retry the selected (`index`, repeated) and written elements (`elements`, like 3-7,9)."""
    if verb not in _VERBS:
        raise not_found(f"action '{verb[:20]}'")
    return perform(request, "job", lambda: _VERBS[verb](job_id, identity, _part(request)), job_id)


def _part(request: HttpRequest) -> str:
    ticked = ",".join(number for number in request.POST.getlist("index") if _NUMBER.fullmatch(number))
    part = ",".join(text for text in (ticked, request.POST.get("elements", "").strip()) if text)
    if not part:
        raise invalid([FieldError("elements", "required", "select elements, or enter their numbers like 3-7,9")])
    return part
