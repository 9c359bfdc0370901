"""One job: its state and sentence, what may be done to it, its history, output and request."""

import re
import shlex
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend import feed
from frontend.views.entrance import act, page, show
from gpusched.lib.problems import not_found
from gpusched.lib.sql import query
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import FINAL, WAITING, JobState, Role
from jobs import logs, services
from scheduling.why import brief, explain
from tenants.permissions import Identity

_VERBS = {
    "cancel": services.cancel,
    "hold": services.hold,
    "release": services.release,
    "requeue": services.requeue,
}
_TAIL_BYTES = 64 << 10
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_STREAM = re.compile(r"(\d{1,9})\.(\d{1,9})")


@page
def job(request: HttpRequest, who: Identity, job_id: int) -> HttpResponse:
    row = _visible(job_id, who)
    rows = feed.rows(f"job:{job_id}", who.visible_tenants())
    shown = rows["job"]
    streams = sorted((r for k, r in rows.items() if k.startswith("log:")), key=lambda r: (-r["attempt"], r["rank"]))
    stream = _stream(request.GET.get("log", ""), streams)
    words = {
        "job": shown,
        "why": brief(job_id, who),
        "events": sorted((r for k, r in rows.items() if k.startswith("event:")), key=lambda r: r["id"]),
        "attempts": sorted((r for k, r in rows.items() if k.startswith("attempt:")), key=lambda r: -r["number"]),
        "streams": streams,
        "stream": stream,
        "log": _tail(job_id, *stream) if stream else "",
        "command": shlex.join([*shown["command"], *shown["args"]]),
        "verbs": _verbs(row, who),
    }
    return show(request, who, "pages/job.html", words)


@page
def actions(request: HttpRequest, who: Identity, job_id: int) -> HttpResponse:
    """The buttons and why the job is where it is, for a page that shows it in state `seen`; 204 if it still is."""
    row = _visible(job_id, who)
    if request.GET.get("seen") == row["state"]:
        return HttpResponse(status=204)
    words = {"job": row, "verbs": _verbs(row, who), "why": brief(job_id, who), "is_part": True}
    return show(request, who, "pages/job_actions.html", words)


@page
def foreseen(request: HttpRequest, who: Identity, job_id: int) -> HttpResponse:
    """What would start a waiting job, and when: asked of the scheduler, so it comes after the page."""
    return show(request, who, "pages/job_foreseen.html", {"told": explain(job_id, who)})


@require_POST
@page
def act_on(request: HttpRequest, who: Identity, job_id: int, verb: str) -> HttpResponse:
    if verb not in _VERBS:
        raise not_found(f"action '{verb[:20]}'")
    return act(request, "job", lambda: _VERBS[verb](job_id, who), job_id)


def _visible(job_id: int, who: Identity) -> dict[str, Any]:
    rows = query("SELECT id, tenant_id, user_id, state, reason FROM jobs_job WHERE id = %s", [job_id])
    if not rows or not who.sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return rows[0]


def _verbs(row: dict[str, Any], who: Identity) -> list[str]:
    """What the person may do to the job in its state; the services check again."""
    role = Role.MEMBER if row["user_id"] == who.user_id else Role.OWNER
    if not who.has(role, row["tenant_id"]):
        return []
    state = row["state"]
    fits = {
        "hold": state == JobState.PENDING,
        "release": state == JobState.HELD and (who.is_admin or row["reason"] != Pending.HELD_BY_ADMIN),
        "requeue": state in (JobState.SCHEDULED, JobState.RUNNING),
        "cancel": state not in FINAL and (state in WAITING or row["state"] != JobState.STOPPING),
    }
    return [verb for verb, is_possible in fits.items() if is_possible]


def _stream(wanted: str, streams: list[dict[str, Any]]) -> tuple[int, int] | None:
    """Attempt and rank of the log to show: the one asked for if it exists, else the latest attempt's first rank."""
    known = [(row["attempt"], row["rank"]) for row in streams]
    if (match := _STREAM.fullmatch(wanted)) and (asked := (int(match[1]), int(match[2]))) in known:
        return asked
    return known[0] if known else None


def _tail(job_id: int, attempt: int, rank: int) -> str:
    """The end of a log as plain text, for who sees the page without its script."""
    piece = logs.read(job_id, attempt, rank, -_TAIL_BYTES, _TAIL_BYTES)
    return _ANSI.sub("", piece.data.decode("utf-8", "replace"))
