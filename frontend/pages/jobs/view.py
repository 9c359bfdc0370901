"""The queue and the list of jobs, filtered by their URLs, and actions on several jobs at once."""

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

import msgspec
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_POST

from frontend.actions import confirmation, job_actions
from frontend.live import snapshot
from frontend.pages.job.view import required_states
from frontend.pages.queue import rows as queuerows
from frontend.ui.page import page, refusal, show
from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.states import WAITING, JobState, Role
from jobs.listing.job_list import count_jobs, list_jobs
from jobs.submit.queue_usage import queue_usage
from scheduling.status.cluster import estimates_of
from tenants.auth.identity import Identity

QUEUE_FILTERS = ("tenant", "user", "state", "reason", "group", "q", "sort")
JOBS_FILTERS = ("tenant", "user", "state", "name", "array", "submitted_after", "submitted_before")
_NOT_IN_QUEUE_FORM = ("reason", "user", "state")
_NOT_IN_JOBS_FORM = ("user", "array", "submitted_before")
_DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_LABELS = {
    "submitted_after": "since",
    "user": "owner",
    "array": "elements of array",
    "submitted_before": "submitted before",
}
_ON_A_PAGE = 100
_STATES = (("waiting", "waiting"), ("live", "on nodes"), ("final", "ended"), *((s, s) for s in JobState))
GROUP_LABELS = (
    ("next", "starts next"),
    ("quota", "quota"),
    ("capacity", "capacity"),
    ("you", "you or a time"),
    ("held", "held"),
)


@page
def queue(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Render the queue with its first window, in the order that the URL requests; the page's script draws it."""
    filters = filters_of(request, QUEUE_FILTERS)
    if filters.get("sort", "").removeprefix("-") not in queuerows.SORTS:
        filters.pop("sort", None)
    tenants = _tenants(identity)
    hidden = {name: filters[name] for name in _NOT_IN_QUEUE_FORM if name in filters}
    context = {
        "topic": f"queue:0-{queuerows.WINDOW_ROWS}" + (f"?{urlencode(filters)}" if filters else ""),
        "filters": filters,
        "chosen": active_filters(request, unlisted_filters(filters, tenants) | hidden),
        "groups": GROUP_LABELS,
        "tenants": tenants,
        "usage": queue_usage(None) if identity.is_admin else [],
    }
    return show(request, identity, "queue/page.html", context)


@page
def estimates(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Return the estimated starts of the visible waiting jobs in `ids`: by id `estimate`, or `estimate_reason`."""
    by_job = estimates_of(_visible_ids(_ids(request.GET.get("ids", ""))[:MAX_AT_ONCE], identity))
    return _json({str(job_id): result for job_id, result in by_job.items()})


@page
def jobs(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Render the list with the newest jobs that match the URL, which the page's script draws."""
    filters = filters_of(request, JOBS_FILTERS)
    tenants = _tenants(identity)
    context = {
        "carried": snapshot.carried("listing", _first_page(filters, identity)),
        "filters": filters,
        "chosen": active_filters(request, unlisted_filters(filters, tenants) | _not_in_jobs_form(filters, identity)),
        "states": _states(filters.get("state", "")),
        "tenants": tenants,
        "member_of": _tenants_with_role(identity, Role.MEMBER),
        "owner_of": _tenants_with_role(identity, Role.OWNER),
    }
    return show(request, identity, "jobs/page.html", context)


def _first_page(filters: dict[str, str], identity: Identity) -> dict[str, Any]:
    """Return the first page of `GET /api/v1/jobs`, with the count of all if there are more, or the `problem`."""
    visible = identity.visible_tenants()
    try:
        items, cursor = list_jobs(filters, visible, _ON_A_PAGE)
        total = {**count_jobs(filters, visible), "at": rfc3339(timezone.now())} if cursor else None
    except Problem as problem:
        message = ". ".join(f"{error.field}: {error.message}" for error in problem.errors)
        return {"problem": message or refusal(problem).removesuffix(".")}
    return {"items": items, "next_cursor": cursor, "total": total}


MAX_AT_ONCE = 500


@page
def loss_of_several(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Return the loss of stopping `ids` as a `sentence`, and the text to be `typed`, as JSON."""
    ids = _ids(request.GET.get("ids", ""))
    if not 0 < len(ids) <= MAX_AT_ONCE:
        return _json({"sentence": _WRONG_COUNT}, 400)
    visible_ids = _visible_ids(ids, identity)
    loss = confirmation.loss_of(*visible_ids)
    return _json(
        {"sentence": confirmation.loss_sentence(loss), "typed": confirmation.required_confirmation(visible_ids, loss)}
    )


@require_POST
@page
def act_on_several(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Perform one action on each of `ids`. Return those done and those refused, with reasons, as JSON.

    `if_state`: the states in which a job can be cancelled; `typed`: the confirmation of a large loss."""
    verb, text = request.POST.get("verb", ""), request.POST.get("ids", "")
    ids = _ids(text)
    if verb not in job_actions.ACTS or not 0 < len(ids) <= MAX_AT_ONCE:
        return _json({"sentence": _WRONG_COUNT}, 400)
    states = required_states(request)
    completed: list[int] = []
    refused: list[dict[str, Any]] = []
    # A cancel of waiting jobs only stops no process.
    if verb in job_actions.STOPPING and not (states and WAITING.issuperset(states)):
        try:
            confirmation.require_confirmation(_visible_ids(ids, identity), request.POST.get("typed", ""))
        except Problem as problem:
            return _json({"sentence": refusal(problem)}, 400)
    for job_id in ids:
        try:
            job_actions.perform(verb, job_id, identity, states)
            completed.append(job_id)
        except Problem as problem:
            refused.append({"id": job_id, "sentence": refusal(problem)})
    return _json({"done": completed, "refused": refused})


_WRONG_COUNT = f"Choose one to {MAX_AT_ONCE} jobs and what to do with them."


def _visible_ids(ids: list[int], identity: Identity) -> list[int]:
    """Return the ids of existing jobs that the caller can see."""
    visible = identity.visible_tenants()
    rows = query(
        "SELECT id FROM jobs_all WHERE id = ANY(%s) AND (%s::bigint[] IS NULL OR tenant_id = ANY(%s))",
        [ids, visible, visible],
    )
    return [row["id"] for row in rows]


def _ids(text: str) -> list[int]:
    """Parse ids, without duplicates."""
    numbers = (word for word in text.split(",") if word.isascii() and word.isdigit() and len(word) <= 18)
    return list(dict.fromkeys(map(int, numbers)))


def _json(answer: object, status: int = 200) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(answer), status=status, content_type="application/json")


def filters_of(request: HttpRequest, names: tuple[str, ...]) -> dict[str, str]:
    """Return the filters in the URL. A value with NUL is dropped, as PostgreSQL cannot store it."""
    params = {name: request.GET.get(name, "").strip() for name in names}
    return {name: value for name, value in params.items() if value and "\x00" not in value}


def _not_in_jobs_form(filters: Mapping[str, str], identity: Identity) -> dict[str, str]:
    """Return the filters that the form has no field for: its only user filter is the caller, its field of a time has
    days alone."""
    hidden = {name: filters[name] for name in _NOT_IN_JOBS_FORM if name in filters}
    since = filters.get("submitted_after", "")
    if since and not _DAY.fullmatch(since):
        hidden["submitted_after"] = since
    return {name: value for name, value in hidden.items() if (name, value) != ("user", identity.username)}


def unlisted_filters(filters: Mapping[str, str], tenants: list[str]) -> dict[str, str]:
    """Return filters whose value the fields do not offer, such as a tenant that no longer exists or the only one."""
    offered = {"tenant": tenants if len(tenants) > 1 else [], "group": [value for value, _ in GROUP_LABELS]}
    return {name: filters[name] for name, values in offered.items() if name in filters and filters[name] not in values}


def active_filters(request: HttpRequest, filters: Mapping[str, str]) -> list[dict[str, str]]:
    """Return filters that no field shows: `name value label text`, and `href`, the page without the filter."""
    active = []
    for name, value in filters.items():
        params = request.GET.copy()
        for dropped in (name, "cursor", "from"):
            params.pop(dropped, None)
        href = f"?{params.urlencode()}" if params else request.path
        label = _LABELS.get(name, name.replace("_", " "))
        text = value.replace("_", " ") if name in ("reason", "state") else value
        active.append({"name": name, "value": value, "label": label, "text": text, "href": href})
    return active


def _states(state: str) -> list[tuple[str, str]]:
    """Return the choices of the state field: kinds, states, and the combination in the URL, if any."""
    labels = dict(_STATES)
    names = [word.strip() for word in state.split(",")]
    if state in labels or any(word not in labels for word in names):
        return list(_STATES)
    return [(state, ", ".join(labels[word] for word in names)), *_STATES]


def _tenants_with_role(identity: Identity, role: Role) -> list[str]:
    """Return the names of tenants in which the caller has at least this role."""
    return sorted(name for tenant_id, name in identity.tenant_names.items() if identity.has(role, tenant_id))


def _tenants(identity: Identity) -> list[str]:
    """Return the names of tenants whose jobs the caller can see."""
    visible = identity.visible_tenants()
    rows = query(
        "SELECT name FROM tenants_all WHERE %s::bigint[] IS NULL OR id = ANY(%s) ORDER BY name LIMIT 500",
        [visible, visible],
    )
    return [row["name"] for row in rows]
