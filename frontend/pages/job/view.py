"""One job: its state and reason, actions, history, output and request."""

import re
import shlex
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.actions import job_actions, status
from frontend.actions.confirmation import loss_of, require_confirmation
from frontend.actions.job_actions import ACTS, STOPPING, actions_for, can_act
from frontend.live import feed, snapshot
from frontend.live.topics import Rows
from frontend.pages.job import placement_choice
from frontend.pages.job.cost import cost_of
from frontend.pages.job.elements import elements_tab
from frontend.pages.job.gpu_readings import readings
from frontend.pages.job.queue_ahead import ahead_of
from frontend.pages.submit import equivalent
from frontend.ui.page import page, perform, refusal, show
from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.db.sql import query
from gpusched.protocol import amounts
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.time_limits import Extension
from gpusched.protocol.states import LIVE, WAITING
from jobs.logs import search
from scheduling.whatif import extend
from scheduling.whatif.explain import current_reason, explain
from tenants.auth.identity import Identity

# A limit changed through the array is undone through the array.
_LATEST = """
    SELECT actor, attempt, (data->>'from_seconds')::bigint AS was, (data->>'to_seconds')::bigint AS made
      FROM jobs_events WHERE job_id = %s AND kind = 'limit_changed' AND NOT data ? 'array' ORDER BY id DESC LIMIT 1
"""


def undo_of(job: Mapping[str, Any], identity: Identity) -> dict[str, Any]:
    """Return how the caller can undo their change of a job's time limit, or nothing.

    `job`: its `id attempt max_runtime_seconds`. `minutes`: the previous limit; `seen`: the limit in seconds to undo.
    Empty if the caller made no change, another user changed it since, or an undo would be refused: a job cannot get
    back to no limit at all, nor to a limit that has passed."""
    events = query(_LATEST, [job["id"]])
    if not events:
        return {}
    [event] = events
    is_latest = (event["attempt"], event["made"]) == (job["attempt"], job["max_runtime_seconds"])
    if not is_latest or event["actor"] != identity.username or event["was"] is None:
        return {}
    minutes = event["was"] / 60
    try:
        extend.allowed(job["id"], Extension(max_runtime_minutes=minutes), identity)
    except Problem:
        return {}
    return {"minutes": minutes, "seen": event["made"]}


_MAX_DIGITS = 9
_STREAM = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})")
_OFFSET = re.compile(r"[0-9]{1,15}")


@page
def job(request: HttpRequest, identity: Identity, job_id: int) -> HttpResponse:
    """Render one tab: that of `?tab=`, else the elements of an array, the reason of a waiting job, or the log.

    `?shown=log` answers 204 if the tab stays the log: its script updates it, and a redraw would disturb the reader."""
    row = _visible(job_id, identity)
    topic = f"job:{job_id}"
    rows = feed.rows(topic, identity.visible_tenants())
    requested = request.GET.get("tab", "")
    tabs = _tabs(rows["job"])
    tab = (
        requested
        if requested in tabs
        else tabs[0]
        if rows["job"]["array"]
        else "why"
        if row["state"] in WAITING
        else "log"
    )
    if tab == "log" == request.GET.get("shown"):
        return HttpResponse(status=204)
    context = {
        "job": rows["job"],
        **_action_context(row, identity),
        "tabs": [(name, _label(name, row["state"])) for name in tabs],
        "tab": tab,
        "tab_name": TABS[tab],
        "is_chosen": bool(requested),
        "carried": snapshot.carried("snapshot", snapshot.represent({topic: rows})),
    }
    if tab in _TAB_CONTEXTS:
        context |= _TAB_CONTEXTS[tab](request, identity, rows)
    return show(request, identity, "job/page.html", context)


def _tabs(job: dict[str, Any]) -> list[str]:
    """Return the tabs of a job. An array has no attempt, so no log or readings; a job without GPUs has no readings."""
    missing = {"log", "gpus"} if job["array"] else {"elements"} if job["gpu_count"] else {"elements", "gpus"}
    return [name for name in TABS if name not in missing]


def _elements_tab(request: HttpRequest, identity: Identity, rows: Rows) -> dict[str, Any]:
    job = rows["job"]
    return {**elements_tab(request, job), "can_act": can_act(_visible(job["id"], identity), identity)}


def _label(tab: str, state: str) -> str:
    return ("Why it waits" if state in WAITING else "Why here") if tab == "why" else TABS[tab]


def _why_tab(request: HttpRequest, identity: Identity, rows: Rows) -> dict[str, Any]:
    return {
        "why": current_reason(rows["job"]["id"], identity),
        **placement_choice.represent(rows["job"]["id"], rows["job"]["attempt"]),
    }


def _spec_tab(request: HttpRequest, identity: Identity, rows: Rows) -> dict[str, Any]:
    fields = equivalent.request_of(rows["job"])
    command = shlex.join([*rows["job"]["command"], *rows["job"]["args"]])
    return {
        "command": command,
        "command_line": equivalent.command_line(fields),
        "json": equivalent.as_json(fields),
        "constraints": equivalent.constraint_texts(fields),
    }


TABS = {
    "elements": "Elements",
    "log": "Log",
    "timeline": "Timeline",
    "gpus": "GPUs",
    "why": "Why",
    "spec": "Spec",
    "events": "Events",
}
# The page's script draws the other tabs.
_TAB_CONTEXTS: dict[str, Callable[[HttpRequest, Identity, Rows], dict[str, Any]]] = {
    "elements": _elements_tab,
    "why": _why_tab,
    "spec": _spec_tab,
}


@page
def gpu_readings(request: HttpRequest, identity: Identity, job_id: int) -> HttpResponse:
    """Return the recorded readings of an attempt's devices as JSON, for the charts of the GPUs tab."""
    _visible(job_id, identity)
    text = request.GET.get("attempt", "")
    number = int(text) if text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None
    result = readings(job_id, number)
    if result is None:
        raise not_found(f"attempt of job {job_id}")
    return HttpResponse(msgspec.json.encode(result), content_type="application/json")


@page
def log_hits(request: HttpRequest, identity: Identity, job_id: int) -> HttpResponse:
    """Search the log `log=ATTEMPT.RANK` for text `q` from byte `offset` on, with `line` lines before it, as JSON from
    jobs/logs/search.py. A search can end before the log does: request again from `next_offset`."""
    _visible(job_id, identity)
    text, stream = request.GET.get("q", ""), _STREAM.fullmatch(request.GET.get("log", ""))
    offset, line = request.GET.get("offset", "0"), request.GET.get("line", "0")
    if not stream:
        raise invalid([FieldError("log", "wrong_type", "must be an attempt and a rank, like 1.0")])
    if not text.strip() or not text.isprintable() or len(text.encode()) > search.MAX_NEEDLE_BYTES:
        message = f"must be one line of text, of at most {search.MAX_NEEDLE_BYTES} bytes"
        raise invalid([FieldError("q", "wrong_value", message)])
    if not (_OFFSET.fullmatch(offset) and _OFFSET.fullmatch(line)):
        raise invalid([FieldError("offset", "wrong_type", "must be a number of bytes, and line one of lines")])
    result = search.search(job_id, int(stream[1]), int(stream[2]), text, int(offset), int(line))
    return HttpResponse(msgspec.json.encode(result), content_type="application/json")


@page
def cost(request: HttpRequest, identity: Identity, job_id: int) -> HttpResponse:
    """Render the cost so far; the page polls it while the job runs."""
    _visible(job_id, identity)
    return show(request, identity, "job/cost.html", {"cost": cost_of(job_id)})


@page
def actions(request: HttpRequest, identity: Identity, job_id: int) -> HttpResponse:
    """Render the actions of the current state, and the status of the latest request."""
    row = _visible(job_id, identity)
    return show(request, identity, "job/actions.html", {"job": row, **_action_context(row, identity)})


def _action_context(row: dict[str, Any], identity: Identity) -> dict[str, Any]:
    context: dict[str, Any] = {
        "verbs": actions_for(row, identity),
        "extended": _proposed_limit(row),
        "last_request": status.of_job(row),
    }
    context["is_others"] = row["state"] in LIVE | WAITING and not can_act(row, identity)
    if context["last_request"].get("action") == "time limit" and "extend" in context["verbs"]:
        context["undo"] = undo_of(row, identity)
    return {**context, "loss": loss_of(row["id"]) if row["state"] in LIVE else {}}


@page
def estimate(request: HttpRequest, identity: Identity, job_id: int) -> HttpResponse:
    """Render when a waiting job would start, and what would help. The scheduler takes seconds in a long queue, so this
    loads after the page. `part=now`: only what is known without the scheduler."""
    is_awaited = request.GET.get("part") == "now"
    try:
        reason = (current_reason if is_awaited else explain)(job_id, identity)
    except Problem as problem:
        if problem.status not in (429, 503):
            raise
        reason = {**current_reason(job_id, identity), "estimate_reason": problem.detail}
    context = {"reason": reason, "ahead": ahead_of(job_id, identity.visible_tenants()), "is_awaited": is_awaited}
    return show(request, identity, "job/estimate.html", context)


@require_POST
@page
def act_on(request: HttpRequest, identity: Identity, job_id: int, verb: str) -> HttpResponse:
    if verb == "extend":
        return perform(request, "job", lambda: _extend(request, identity, job_id), job_id)
    if verb not in ACTS:
        raise not_found(f"action '{verb[:20]}'")
    if verb in STOPPING:
        return perform(request, "job", lambda: _stop(request, identity, job_id, verb), job_id)
    return perform(request, "job", lambda: job_actions.perform(verb, job_id, identity), job_id)


def required_states(request: HttpRequest) -> list[str] | None:
    """Return `if_state`: the states for which the request is valid; it can be some seconds old."""
    text = request.POST.get("if_state", "")
    return text.split(",") if text else None


def _stop(request: HttpRequest, identity: Identity, job_id: int, verb: str) -> str:
    """Stop a job; a large loss must be confirmed by typing its id."""
    _visible(job_id, identity)
    require_confirmation([job_id], request.POST.get("typed", ""))
    return job_actions.perform(verb, job_id, identity, required_states(request))


@require_POST
@page
def extend_preview(request: HttpRequest, identity: Identity, job_id: int) -> HttpResponse:
    """Render the effect of the limit in the form, without a change; empty without a limit."""
    _visible(job_id, identity)
    if not request.POST.get("max_runtime_minutes", "").strip():
        return HttpResponse()
    try:
        context: dict[str, Any] = {"effect": _change_limit(request, identity, job_id, is_dry_run=True)}
    except Problem as problem:
        context = {"refused": refusal(problem)}
    return show(request, identity, "job/extend_effect.html", context)


def _extend(request: HttpRequest, identity: Identity, job_id: int) -> str:
    return str(_change_limit(request, identity, job_id, is_dry_run=False)["message"])


def _change_limit(request: HttpRequest, identity: Identity, job_id: int, *, is_dry_run: bool) -> dict[str, Any]:
    """Set the limit in the form, in minutes from the start. `force`: an admin overrides a promise; `seen`: for an
    undo, the limit in seconds that it replaces."""
    try:
        minutes = float(request.POST.get("max_runtime_minutes", ""))
    except ValueError as error:
        raise invalid([FieldError("", "wrong_type", "enter a number of minutes")]) from error
    extension = Extension(max_runtime_minutes=minutes, force="force" in request.POST)
    observed = request.POST.get("seen", "")
    if observed and not _OFFSET.fullmatch(observed):
        raise invalid([FieldError("seen", "wrong_type", "must be a number of seconds")])
    return extend.extend(
        job_id, extension, identity, is_dry_run=is_dry_run, expected=int(observed) if observed else None
    )


def _visible(job_id: int, identity: Identity) -> dict[str, Any]:
    rows = query(
        "SELECT id, tenant_id, user_id, state, attempt, reason, stop_reason, max_runtime_seconds, array_count"
        "  FROM jobs_all WHERE id = %s",
        [job_id],
    )
    if not rows or not identity.sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return rows[0]


def _proposed_limit(row: dict[str, Any]) -> str:
    """Return the limit that the form proposes, in minutes: an hour more."""
    seconds = row["max_runtime_seconds"]
    return "" if seconds is None else amounts.exact(round(seconds / 60 + 60, 2))
