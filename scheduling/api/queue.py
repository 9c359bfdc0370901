"""REST for scheduling: queue, explanations, shares, cycles, cluster status, health and readiness."""

from django.db import DatabaseError
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched import __version__
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import RETRY_AFTER_SECONDS
from gpusched.lib.api.rest import (
    PAGED,
    cursor_number,
    decode_cursor,
    encode_cursor,
    is_true,
    page_limit,
    paged,
    read_body,
    read_query,
    require_once,
    whole_number,
)
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.rest.cluster import ClusterStatus as ClusterNumbers
from gpusched.protocol.rest.cluster import Health as HealthData
from gpusched.protocol.rest.cluster import Readiness, Share
from gpusched.protocol.rest.explain import Explanation, Simulation
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.scheduling import Cycle, CycleReplay, QueuePage, QueueUsage
from jobs.submit import submit
from jobs.submit.queue_usage import queue_usage
from nodes.agents.hub import hub
from scheduling.status import cluster
from scheduling.whatif import cycle_replay, explain
from scheduling.worker import housekeeping
from tenants.auth.identity import identity


class Explain(APIView):
    @documented(
        "Explain the state of a job, and what is ahead of it",
        tag="jobs",
        who="viewer",
        answer=Explanation,
        refusals=(400, 401, 403, 404, 429, 503),
    )
    def get(self, request: Request, job_id: int) -> Response:
        """Why it is pending, what would help, and when it starts. Computed by the scheduler at this moment."""
        return Response(explain.explain(job_id, identity(request)))


class Simulate(APIView):
    @documented(
        "Simulate the submit of a job, without submitting it",
        tag="jobs",
        who="member",
        body=JobRequest,
        answer=Simulation,
        refusals=(400, 401, 403, 404, 413, 422, 429, 503),
    )
    def post(self, request: Request) -> Response:
        """The body is a job request, the answer a simulation. Invalid requests are refused as by the submit; nothing is
        written. The same as `POST /jobs?dry_run=true`."""
        return Response(submit.simulate(read_body(request, JobRequest), identity(request)))


class Queue(APIView):
    @documented(
        "List your waiting jobs with their positions in the queue of all tenants",
        tag="scheduling",
        who="anybody",
        answer=QueuePage,
        parameters=PAGED,
    )
    def get(self, request: Request) -> Response:
        """`position` counts the jobs of all tenants, by priority and age; `gpus_ahead`: the GPUs of the jobs ahead.
        Each has an `estimate` as in an explanation, some seconds old, if at most 2,000 jobs wait, else
        `estimate_reason`."""
        params = read_query(request)
        after = decode_cursor(params["cursor"], "queue", tuple[int, float, int]) if "cursor" in params else None
        page = cluster.queue(identity(request), after, page_limit(params))
        following = page.pop("next")
        return Response({**page, "next_cursor": encode_cursor("queue", *following) if following else None})


class Usage(APIView):
    @documented(
        "List the use of the queue: waiting jobs by tenant and user (admins: all tenants)",
        tag="scheduling",
        who="anybody",
        answer=Page[QueueUsage],
    )
    def get(self, request: Request) -> Response:
        """The tenant with the most waiting jobs first, with the limits of tenant and user. Not paged."""
        return Response({"items": queue_usage(identity(request).visible_tenants()), "next_cursor": None})


class Shares(APIView):
    @documented(
        "List what each of your tenants holds and has used, by weight (admins: all tenants)",
        tag="scheduling",
        who="anybody",
        answer=Page[Share],
    )
    def get(self, request: Request) -> Response:
        """`effective_weight` is the weight after its adjustment to past use, and `weight_reason` explains it."""
        caller = identity(request)
        items = [share for share in cluster.shares() if caller.sees(share["tenant_id"])]
        return Response({"items": items, "next_cursor": None})


class Cycles(APIView):
    @documented(
        "List scheduling cycles, newest first, with the time of each phase",
        tag="scheduling",
        who="admin",
        answer=Page[Cycle],
        parameters=PAGED,
    )
    def get(self, request: Request) -> Response:
        """Times are in milliseconds."""
        identity(request).require_admin()
        params = read_query(request)
        limit = page_limit(params)
        return Response(paged(cluster.cycles(limit, cursor_number(params, "cycles")), limit, "cycles"))


class Replay(APIView):
    @documented(
        "Replay a recorded scheduling cycle with the recorded policy or another one",
        tag="scheduling",
        who="admin",
        answer=CycleReplay,
        parameters={
            "policy": "queue order to plan by: fair, priority, cost_aware or shortest; without it, the recorded policy",
            "job_id": "also explain this job, which must have waited in the cycle",
            "node": "and explain why the job does not start on this node",
        },
        refusals=(400, 401, 403, 404, 409, 429, 503),
    )
    def get(self, request: Request, cycle_id: int) -> Response:
        """`GET /scheduling/cycles` lists which cycles are recorded (`is_recorded`). Nothing is written."""
        identity(request).require_admin()
        params = read_query(request)
        job_id = whole_number(params, "job_id", 0, 1, 2**63 - 1) if "job_id" in params else None
        return Response(cycle_replay.replay(cycle_id, params.get("policy"), job_id, params.get("node")))


class ClusterStatus(APIView):
    @documented("Read the cluster's status in numbers", tag="cluster", who="anybody", answer=ClusterNumbers)
    def get(self, request: Request) -> Response:
        """`pending_jobs`: waiting or held, with each element of an array. `pretend`: GPUs and readings are
        simulated."""
        return Response({**cluster.cluster_status(), "version": __version__})


class Health(APIView):
    authentication_classes = []
    permission_classes = [AllowAny]

    @documented("Check that the web process answers", tag="cluster", who="no token", answer=HealthData, refusals=())
    def get(self, request: Request) -> Response:
        return Response({"status": "ok", "version": __version__})


# Less than GPUSCHED_NODE_LOST_SECONDS, after which a node counts as lost: agents send every other second.
MAX_UNHEARD_SECONDS = 10.0


class Ready(APIView):
    authentication_classes = []
    permission_classes = [AllowAny]

    @documented(
        "Check that database and scheduler work, and that agents' messages are processed",
        tag="cluster",
        who="no token",
        answer=Readiness,
        also={503: Readiness},
        parameters={"head": "true: for load balancers; whether this head and its database answer, and nothing else"},
        refusals=(400,),
    )
    def get(self, request: Request) -> Response:
        """503 if database or scheduler fail, or if an agent's message has waited for more than 10 s. The answer also
        reports lost agents and stalled housekeeping, which do not make the server unready. With `head=true`, 503 only
        if the database fails: while cycles or agents' messages are late, this head still answers requests."""
        require_once(request.GET)
        is_for_head = is_true(read_query(request), "head")
        late, unheard = None, hub.waiting_seconds()
        try:
            lag, agents = cluster.scheduler_lag(), cluster.agents()
            late = housekeeping.lag_seconds(housekeeping.task_ages())
            is_ready = is_for_head or (bool(lag["is_alive"]) and unheard <= MAX_UNHEARD_SECONDS)
            parts = {
                "database": True,
                "scheduler": bool(lag["is_alive"]),
                "cycle_age_seconds": lag["age_seconds"],
                "agents": agents,
            }
        except DatabaseError:
            is_ready, parts = False, {"database": False, "scheduler": False, "cycle_age_seconds": None, "agents": {}}
        answer = {"status": "ok" if is_ready else "not ready", **parts}
        answer |= {"housekeeping": housekeeping.is_working(late), "housekeeping_lag_seconds": late and round(late, 1)}
        answer |= {"agents_unheard_seconds": round(unheard, 1)}
        if is_ready:
            return Response(answer)
        return Response(answer, status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
