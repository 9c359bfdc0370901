"""REST for jobs: submit, list, read, act; history."""

from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.client.events import Event
from gpusched.client.foresight import WouldSubmit
from gpusched.client.models import Acted, JobData, Page
from gpusched.lib.api import (
    PAGED,
    cursor_number,
    encode_cursor,
    page_limit,
    paged,
    raw_body,
    read_body,
    read_query,
    whole_number,
)
from gpusched.lib.dry_runs import is_dry_run
from gpusched.lib.openapi import documented
from gpusched.lib.problems import invalid, not_found
from gpusched.lib.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.jobs import FieldError, JobRequest
from gpusched.protocol.states import FINAL, LIVE, WAITING, JobState
from jobs import dates, representation, services
from jobs.event_log import VIA
from jobs.unnamed import shown
from tenants import idempotency
from tenants.api import find_tenant
from tenants.permissions import identity

_STATE_WORDS = {"waiting": sorted(WAITING), "live": sorted(LIVE), "final": sorted(FINAL)}
_FILTERS = {
    "tenant": "name of a tenant",
    "state": "states separated by commas; also waiting, live, final",
    "user": "name of the submitter",
    "array": "id of an array: its elements that are jobs, instead of jobs and arrays",
    "name": "part of the job's name; a page may then have fewer items, or none, and a next_cursor",
    **dates.FILTERS,
    **PAGED,
}


class Jobs(APIView):
    keeps_answers = True

    @documented(
        "Submit a job",
        tag="jobs",
        who="member",
        body=JobRequest,
        answer=Acted,
        status=201,
        also={200: WouldSubmit},
        refusals=(400, 401, 403, 404, 409, 413, 422, 429, 503),
        parameters={"dry_run": "true: answer 200 with what jobs/simulate answers, and submit nothing"},
    )
    def post(self, request: Request) -> HttpResponse:
        """The body is a job request. Answered once it is durable. Send an `Idempotency-Key`, then repeating the request
        is safe for 24 hours."""
        if is_dry_run(request):
            found = services.simulate(read_body(request, JobRequest), identity(request))
            message = f"nothing was submitted; in the queue of tenant {found['tenant']} {found['sentence']}"
            answer = {"job_id": None, "status": "would_be_submitted", "message": message, "job": None}
            return Response({**answer, "simulation": found})
        key = idempotency.checked(request.headers.get("Idempotency-Key", ""))
        wanted = read_body(request, JobRequest)
        done = services.submit(wanted, identity(request), key, raw_body(request))
        response = HttpResponse(done.answer, status=201, content_type="application/json")
        if done.is_replay:
            response["Idempotent-Replay"] = "true"
        return response

    @documented("List jobs, newest first", tag="jobs", who="viewer", answer=Page[JobData], parameters=_FILTERS)
    def get(self, request: Request) -> Response:
        """Of own tenants. An array is listed once. A page that searches by part of a name looks at 5,000 jobs, as does
        one of a span in which more than 2,000 ended: it may have few items, or none, and yet a `next_cursor`. A page of
        jobs that run large scripts ends after 8 MiB of them."""
        given, who = read_query(request), identity(request)
        if "tenant" in given:
            find_tenant(given["tenant"], who)  # a name that is misspelt has not just no jobs
        items, cursor = listed(given, who.visible_tenants(), page_limit(given))
        return Response({"items": items, "next_cursor": cursor})


def listed(given: dict[str, str], visible: list[int] | None, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    """A page of the jobs that meet the filters, newest first, and the cursor of the next page; 400 for a bad filter."""
    where, params = _condition(given, visible)
    last = None
    ids = None if "array" in given else dates.those_ended(given, MOST_AT_ONCE)
    found = _found(given, are_known=ids is not None)
    if ids is not None:
        where, params = f"{where} AND j.id = ANY(%s)", [*params, sorted(ids)]
    if found[0]:
        where, params, last = _searched(where, params, found)
    items, is_full = representation.newest(where, params, limit)
    last = items[-1]["id"] if is_full else last
    return items, None if last is None else encode_cursor("jobs", last)


# By id, and that asked for first: only of a number does PostgreSQL know how many jobs it has, and which index to walk.
_NAMED = {
    "tenant": ("j.tenant_id = %s", "SELECT id FROM tenants_tenant WHERE name = %s"),
    "user": ("j.user_id = %s", "SELECT id FROM auth_user WHERE username = %s"),
}


def _condition(given: dict[str, str], visible: list[int] | None) -> tuple[str, list[Any]]:
    parts, params = ["j.array_id IS NULL"], list[Any]()
    if "array" in given:
        parts, params = ["j.array_id = %s"], [whole_number(given, "array", 0, 1, 2**62)]
    if visible is not None:
        # An index gives the newest of one tenant, of several only one after the other.
        parts.append("j.tenant_id = %s" if len(visible) == 1 else "j.tenant_id = ANY(%s)")
        params.append(visible[0] if len(visible) == 1 else visible)
    for name, (sql, its_id) in _NAMED.items():
        if name in given:
            parts.append(sql)
            params.append(next((row["id"] for row in query(its_id, [given[name]])), None))
    if "state" in given:
        # Those of one kind by one index, so that PostgreSQL sees that it may use it.
        states = set(states_of(given["state"]))
        kinds = [sorted(kind) for kind in (states & FINAL, states - FINAL) if kind]
        parts.append(f"({' OR '.join(['j.state = ANY(%s)'] * len(kinds))})")
        params += kinds
    more, moments = dates.submitted(given, of_array="array" in given)
    parts += more
    params += moments
    if (last := cursor_number(given, "jobs")) is not None:
        parts.append("j.id < %s")
        params.append(last)
    return " AND ".join(parts), params


# No index knows parts of names, nor gives those that ended in a span by their ids. A page looks at so many jobs, and
# where to go on stands in its cursor.
MOST_SEARCHED = 5_000
# … but of a span in which no more than so many ended, all are known by an index.
MOST_AT_ONCE = 2_000


def _found(given: dict[str, str], *, are_known: bool) -> dates.Condition:
    """What is looked for without an index. `are_known`: which ended in the span."""
    parts, params = ([], []) if are_known else dates.ended(given)
    if "name" in given:
        parts.append("strpos(lower(j.name), lower(%s)) > 0")
        params.append(given["name"])
    return parts, params


def _searched(where: str, params: list[Any], found: dates.Condition) -> tuple[str, list[Any], int | None]:
    """The condition with what is looked for, among the newest jobs that meet it so far; and the last of them, if more
    follow."""
    sql = f"SELECT j.id FROM jobs_job j WHERE {where} ORDER BY j.id DESC OFFSET %s LIMIT 1"
    beyond = query(sql, [*params, MOST_SEARCHED - 1])
    last = beyond[0]["id"] if beyond else None
    parts, more = found
    return " AND ".join([where, *parts, "j.id >= %s"]), [*params, *more, last or 0], last


def states_of(text: str) -> list[str]:
    wanted: list[str] = []
    for word in text.split(","):
        if word not in list(JobState) and word not in _STATE_WORDS:
            accepted = ", ".join([*JobState, *_STATE_WORDS])
            raise invalid([FieldError("state", "unknown_value", f"there is no state '{word[:50]}'; use {accepted}")])
        wanted += _STATE_WORDS.get(word, [word])
    return wanted


def seen_job(request: Request, job_id: int) -> dict[str, Any]:
    """The job's key columns; 404 for what does not exist and for what the caller may not see alike."""
    rows = query("SELECT id, tenant_id, state, attempt, array_id, array_count FROM jobs_job WHERE id = %s", [job_id])
    if not rows or not identity(request).sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return rows[0]


class Job(APIView):
    @documented("Read a job", tag="jobs", who="viewer", answer=JobData)
    def get(self, request: Request, job_id: int) -> Response:
        seen_job(request, job_id)
        return Response(representation.select("j.id = %s", [job_id])[0])

    @documented("Cancel a job", tag="jobs", who="own jobs: member, else owner", answer=Acted)
    def delete(self, request: Request, job_id: int) -> Response:
        """The same as POST …/cancel; the job stays readable."""
        return acted(job_id, services.cancel(job_id, identity(request)))


def acted(job_id: int, message: str) -> Response:
    job = representation.select("j.id = %s", [job_id])[0]
    return Response({"job_id": job_id, "status": job["state"], "message": message, "job": job})


def _action(verb: str, summary: str, more: str, act: Any) -> type[APIView]:
    class Action(APIView):
        @documented(
            summary,
            description=more,
            tag="jobs",
            who="own jobs: member, else owner",
            answer=Acted,
            operation_id=f"jobs_{verb}",
            refusals=(401, 403, 404, 409),
        )
        def post(self, request: Request, job_id: int) -> Response:
            return acted(job_id, act(job_id, identity(request)))

    Action.__name__ = verb.capitalize()
    return Action


Hold = _action(
    "hold",
    "Keep a waiting job from starting",
    "By an admin who is no member of the tenant it is an admin's hold.",
    services.hold,
)
Release = _action(
    "release",
    "Let a held job wait for its turn again",
    "From its old queue time. An admin's hold needs an admin.",
    services.release,
)
Requeue = _action(
    "requeue",
    "Stop a live job and put it back into the queue",
    "To where it stood. Uses up no retry, and asks not whether `requeue` is true.",
    services.requeue,
)


class Events(APIView):
    @documented("What happened to a job, in order", tag="jobs", who="viewer", answer=Page[Event], parameters=PAGED)
    def get(self, request: Request, job_id: int) -> Response:
        """`via` is by which way a person did it, `page` or `token` and its prefix; else `agent` (told by the node's) or
        `scheduler`. Kinds: `submitted scheduled started stopping ended requeued retried held released eligible
        limit_changed signal_sent cancelled part_cancelled preempting idle_warning idle_would_end idle_over`. Of a job
        of another tenant for which this one was stopped `data` says no more than that; admins find its id in `by_job`.
        `preempting`, of the job that others were stopped for: `victims` of its own tenant, and how many
        `of_other_tenants`. `part_cancelled`, of an array: which `elements` were named, and how many of them were
        `cancelled` while they waited and how many `stopped`."""
        seen_job(request, job_id)
        given = read_query(request)
        limit = page_limit(given)
        rows = query(
            f"SELECT id, at, kind, attempt, actor, {VIA}, data FROM jobs_jobevent e"
            " WHERE job_id = %s AND id > %s ORDER BY id LIMIT %s",
            [job_id, cursor_number(given, "events") or 0, limit],
        )
        is_admin = identity(request).visible_tenants() is None
        items = [{**row, "at": rfc3339(row["at"]), "data": shown(row["data"], is_admin=is_admin)} for row in rows]
        return Response(paged(items, limit, "events"))
