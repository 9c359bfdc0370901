"""REST for jobs: submit, list, read, act; history."""

from typing import Any

from django.http import HttpResponse
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import not_found
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, raw_body, read_body, read_query
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import JobRequest, validate
from gpusched.protocol.rest.events import Event
from gpusched.protocol.rest.explain import WouldSubmit
from gpusched.protocol.rest.jobs import Acted, JobCount, JobData, Page
from jobs.actions import job_actions
from jobs.events.log import VIA
from jobs.listing import job_list, representation
from jobs.listing.job_list import count_jobs, list_jobs
from jobs.redaction import visible_evidence
from jobs.submit import idempotency, submit
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity

_FILTERED_BY = {
    "tenant": "name of a tenant",
    "state": "states separated by commas; also waiting, live, final",
    "user": "name of the submitter",
    "array": "id of an array: its elements that are jobs, instead of jobs and arrays",
    "name": "part of the job's name; a page may then have fewer items, or none, and a next_cursor",
    **job_list.FILTERS,
}
_FILTERS = {**_FILTERED_BY, **PAGED}


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
            found = submit.simulate(read_body(request, JobRequest, validate), identity(request))
            message = f"nothing was submitted; in the queue of tenant {found['tenant']} {found['sentence']}"
            answer = {"job_id": None, "status": "would_be_submitted", "message": message, "job": None}
            return Response({**answer, "simulation": found})
        key = idempotency.valid_key(request.headers.get("Idempotency-Key", ""))
        wanted = read_body(request, JobRequest, validate)
        done = submit.submit(wanted, identity(request), key, raw_body(request))
        response = HttpResponse(done.answer, status=201, content_type="application/json")
        if done.is_replay:
            response["Idempotent-Replay"] = "true"
        if done.warning:
            response["Queue-Warning"] = done.warning
        return response

    @documented("List jobs, newest first", tag="jobs", who="viewer", answer=Page[JobData], parameters=_FILTERS)
    def get(self, request: Request) -> Response:
        """Of own tenants. An array is listed once. A page that searches by part of a name looks at 5,000 jobs, as does
        one of a span in which more than 2,000 ended: it may have few items, or none, and yet a `next_cursor`. A page of
        jobs that run large scripts ends after 8 MiB of them."""
        given, who = read_query(request), identity(request)
        if "tenant" in given:
            find_tenant(given["tenant"], who)  # a name that is misspelt has not just no jobs
        items, cursor = list_jobs(given, who.visible_tenants(), page_limit(given))
        return Response({"items": items, "next_cursor": cursor})


class Count(APIView):
    @documented("Count jobs", tag="jobs", who="viewer", answer=JobCount, parameters=_FILTERED_BY)
    def get(self, request: Request) -> Response:
        """Those that a list with the same filters has, an array once. No more than 10,000 are looked at."""
        given, who = read_query(request), identity(request)
        if "tenant" in given:
            find_tenant(given["tenant"], who)
        return Response(count_jobs(given, who.visible_tenants()))


def visible_job(request: Request, job_id: int) -> dict[str, Any]:
    """The job's key columns; 404 for what does not exist and for what the caller may not see alike."""
    rows = query("SELECT id, tenant_id, state, attempt, array_id, array_count FROM jobs_job WHERE id = %s", [job_id])
    if not rows or not identity(request).sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return rows[0]


class Job(APIView):
    @documented("Read a job", tag="jobs", who="viewer", answer=JobData)
    def get(self, request: Request, job_id: int) -> Response:
        visible_job(request, job_id)
        return Response(representation.select("j.id = %s", [job_id])[0])

    @documented("Cancel a job", tag="jobs", who="own jobs: member, else owner", answer=Acted)
    def delete(self, request: Request, job_id: int) -> Response:
        """The same as POST …/cancel; the job stays readable."""
        return action_response(job_id, job_actions.cancel(job_id, identity(request)))


def action_response(job_id: int, message: str) -> Response:
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
            return action_response(job_id, act(job_id, identity(request)))

    Action.__name__ = verb.capitalize()
    return Action


Hold = _action(
    "hold",
    "Keep a waiting job from starting",
    "By an admin who is no member of the tenant it is an admin's hold.",
    job_actions.hold,
)
Release = _action(
    "release",
    "Let a held job wait for its turn again",
    "From its old queue time. An admin's hold needs an admin.",
    job_actions.release,
)
Requeue = _action(
    "requeue",
    "Stop a live job and put it back into the queue",
    "To where it stood. Uses up no retry, and asks not whether `requeue` is true.",
    job_actions.requeue,
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
        visible_job(request, job_id)
        given = read_query(request)
        limit = page_limit(given)
        rows = query(
            f"SELECT id, at, kind, attempt, actor, {VIA}, data FROM jobs_jobevent e"
            " WHERE job_id = %s AND id > %s ORDER BY id LIMIT %s",
            [job_id, cursor_number(given, "events") or 0, limit],
        )
        is_admin = identity(request).visible_tenants() is None
        items = [
            {**row, "at": rfc3339(row["at"]), "data": visible_evidence(row["data"], is_admin=is_admin)} for row in rows
        ]
        return Response(paged(items, limit, "events"))
