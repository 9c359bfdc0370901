"""The elements of an array on its page: those that the address asks for, and cancel and retry of a part."""

import re
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.pages.job.rows import Row
from frontend.ui.page import perform, page
from gpusched.lib.api.problems import Problem, invalid, not_found
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
    """A page of the elements of an array that `state` and `index` of the address ask for, from number `from` on."""
    asked = {name: text for name in ("state", "index") if (text := request.GET.get(name, "").strip())}
    words = {"asked": asked, "states": _STATES, "failed": _failed(job), "elements": [], "refused": ""}
    try:
        states = states_of(asked["state"]) if "state" in asked else list(JobState)
        chosen = arrays.parse_ranges(asked["index"], job["array"]["count"]) if "index" in asked else ((0, 2**31 - 1),)
    except Problem as problem:
        return {**words, "refused": problem.errors[0].message}
    except ValueError as error:
        return {**words, "refused": str(error)}
    start = int(found[0]) if (found := _NUMBER.fullmatch(request.GET.get("from", ""))) else 0
    left = tuple((max(first, start), end) for first, end in chosen if end > start)
    found_elements = list_elements(job["id"], arrays.multirange(left), states, ON_A_PAGE + 1)
    shown, rest = found_elements[:ON_A_PAGE], found_elements[ON_A_PAGE:]
    more = urlencode({"tab": "elements", **asked, "from": rest[0]["index"]}) if rest else ""
    first = urlencode({"tab": "elements", **asked}) if start else ""
    return {**words, "elements": shown, "more": more, "first": first}


def _failed(job: Row) -> int:
    """As many as a retry of what failed has run again."""
    by: dict[str, int] = job["array"]["by_state"]
    return by.get("failed", 0) + by.get("preempted", 0)


_VERBS = {"cancel": job_actions.cancel, "retry": job_actions.retry}


@require_POST
@page
def act_on_elements(request: HttpRequest, who: Identity, job_id: int, verb: str) -> HttpResponse:
    """Cancels or retries those that are ticked (`index`, several) and written (`elements`, like 3-7,9)."""
    if verb not in _VERBS:
        raise not_found(f"action '{verb[:20]}'")
    return perform(request, "job", lambda: _VERBS[verb](job_id, who, _part(request)), job_id)


def _part(request: HttpRequest) -> str:
    ticked = ",".join(number for number in request.POST.getlist("index") if _NUMBER.fullmatch(number))
    part = ",".join(text for text in (ticked, request.POST.get("elements", "").strip()) if text)
    if not part:
        raise invalid([FieldError("elements", "required", "select elements, or enter their numbers like 3-7,9")])
    return part
