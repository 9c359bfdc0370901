"""REST for jobs: submit, list, read, act on; their events."""

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
from gpusched.lib.hooks import hook
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
from jobs.submit import submit
from tenants import buckets
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
        parameters={"dry_run": "true: answer 200 with the answer of jobs/simulate, and submit nothing"},
    )
    def post(self, request: Request) -> HttpResponse:
        """The body is a job request. The answer comes once the job is durable. With an `Idempotency-Key` you can safely
        repeat the request for 24 hours. A job, also an array, takes one token of each bucket that limits `jobs`, and
        the answer then has `RateLimit-*`."""
        if is_dry_run(request):
            preview = submit.simulate(read_body(request, JobRequest, validate), identity(request))
            message = f"nothing was submitted; in the queue of tenant {preview['tenant']} {preview['sentence']}"
            answer = {"job_id": None, "status": "would_be_submitted", "message": message, "job": None}
            return Response({**answer, "simulation": preview})
        key = request.headers.get("Idempotency-Key", "")
        body = read_body(request, JobRequest, validate)
        submitted = submit.submit(body, identity(request), key, raw_body(request))
        response = HttpResponse(submitted.answer, status=201, content_type="application/json")
        if submitted.is_replay:
            response["Idempotent-Replay"] = "true"
        if submitted.warning:
            response["Queue-Warning"] = submitted.warning
        for name, value in buckets.headers(submitted.room).items():
            response[name] = value
        return response

    @documented("List jobs, newest first", tag="jobs", who="viewer", answer=Page[JobData], parameters=_FILTERS)
    def get(self, request: Request) -> Response:
        """Covers your own tenants. An array is listed once. A page that searches by part of a name examines 5,000 jobs,
        as does one of a span in which more than 2,000 ended: it may have few items, or none, and yet a `next_cursor`.
        A page of jobs with large scripts ends after 8 MiB of them."""
        filters, caller = read_query(request), identity(request)
        if "tenant" in filters:
            find_tenant(filters["tenant"], caller)  # a misspelt name is a 404, not an empty list
        items, cursor = list_jobs(filters, caller.visible_tenants(), page_limit(filters))
        return Response({"items": items, "next_cursor": cursor})


class Count(APIView):
    @documented("Count jobs", tag="jobs", who="viewer", answer=JobCount, parameters=_FILTERED_BY)
    def get(self, request: Request) -> Response:
        """Counts the jobs of a list with the same filters, an array once. At most 10,000 are examined."""
        filters, caller = read_query(request), identity(request)
        if "tenant" in filters:
            find_tenant(filters["tenant"], caller)
        return Response(count_jobs(filters, caller.visible_tenants()))


def visible_job(request: Request, job_id: int) -> dict[str, Any]:
    """Return the job's key columns; 404 both for a missing job and for one that the caller must not see."""
    rows = query("SELECT id, tenant_id, state, attempt, array_id, array_count FROM jobs_job WHERE id = %s", [job_id])
    if not rows or not identity(request).sees(rows[0]["tenant_id"]):
        raise not_found(f"job {job_id}")
    return rows[0]


class Job(APIView):
    @documented("Read a job", tag="jobs", who="viewer", answer=JobData)
    def get(self, request: Request, job_id: int) -> Response:
        visible_job(request, job_id)
        [job] = representation.select_few([job_id])
        return Response({**job, "predicted": hook("predicted_run_time")(job_id, identity(request).user_id)})

    @documented("Cancel a job", tag="jobs", who="own jobs: member, else owner", answer=Acted)
    def delete(self, request: Request, job_id: int) -> Response:
        """The same as POST …/cancel; the job stays readable."""
        return action_response(job_id, job_actions.cancel(job_id, identity(request)))


def action_response(job_id: int, message: str) -> Response:
    job = representation.select("j.id = %s", [job_id])[0]
    return Response({"job_id": job_id, "status": job["state"], "message": message, "job": job})


def _action(verb: str, summary: str, description: str, action: Any) -> type[APIView]:
    class Action(APIView):
        @documented(
            summary,
            description=description,
            tag="jobs",
            who="own jobs: member, else owner",
            answer=Acted,
            operation_id=f"jobs_{verb}",
            refusals=(401, 403, 404, 409),
        )
        def post(self, request: Request, job_id: int) -> Response:
            return action_response(job_id, action(job_id, identity(request)))

    Action.__name__ = verb.capitalize()
    return Action


Hold = _action(
    "hold",
    "Keep a waiting job from starting",
    "A hold by an admin who is not a member of the tenant is an admin's hold.",
    job_actions.hold,
)
Release = _action(
    "release",
    "Let a held job wait again",
    "It keeps its queue time. Only an admin can release an admin's hold.",
    job_actions.release,
)
Requeue = _action(
    "requeue",
    "Stop a live job and return it to the queue",
    "It keeps its queue time and uses up no retry. The job's `requeue` does not matter.",
    job_actions.requeue,
)


class Events(APIView):
    @documented("List the events of a job, in order", tag="jobs", who="viewer", answer=Page[Event], parameters=PAGED)
    def get(self, request: Request, job_id: int) -> Response:
        """`via` is the channel of a person's action, `page` or `token` and its prefix; otherwise `agent` or
        `scheduler`. Kinds: `submitted scheduled started stopping ended requeued retried held released eligible
        limit_changed signal_sent cancelled part_cancelled preempting idle_warning idle_would_end idle_over`. If this
        job was stopped for one of another tenant, `data` does not identify that job; admins find its id in `by_job`.
        `preempting`, on the job that others were stopped for, lists the `victims` of its own tenant and counts those
        `of_other_tenants`. `part_cancelled`, on an array, names the `elements` and counts those `cancelled` while they
        waited and those `stopped`."""
        visible_job(request, job_id)
        params = read_query(request)
        limit = page_limit(params)
        rows = query(
            f"SELECT id, at, kind, attempt, actor, {VIA}, data FROM jobs_jobevent e"
            " WHERE job_id = %s AND id > %s ORDER BY id LIMIT %s",
            [job_id, cursor_number(params, "events") or 0, limit],
        )
        is_admin = identity(request).visible_tenants() is None
        items = [
            {**row, "at": rfc3339(row["at"]), "data": visible_evidence(row["data"], is_admin=is_admin)} for row in rows
        ]
        return Response(paged(items, limit, "events"))
