"""REST about scheduling: the queue and its reasons, shares, cycles, the cluster's state, health and readiness."""

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
    page_limit,
    paged,
    read_body,
    read_query,
    whole_number,
)
from gpusched.lib.bus.listener import listener
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.rest.cluster import ClusterStatus as ClusterNumbers
from gpusched.protocol.rest.cluster import Health as HealthData
from gpusched.protocol.rest.cluster import Readiness, Share
from gpusched.protocol.rest.explain import Explanation, Simulation
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.scheduling import Cycle, CycleReplay, QueuePage, QueueUsage
from jobs.submit import submit as job_services
from jobs.submit.queue_usage import queue_usage
from nodes.agents.hub import hub
from scheduling.status import cluster
from scheduling.whatif import cycle_replay, explain
from scheduling.worker import housekeeping
from tenants.auth.identity import identity


class Explain(APIView):
    @documented(
        "Why a job is where it is, and what is ahead of it",
        tag="jobs",
        who="viewer",
        answer=Explanation,
        refusals=(400, 401, 403, 404, 429, 503),
    )
    def get(self, request: Request, job_id: int) -> Response:
        """Why it waits, what would help, when it starts: an explanation. Asked of the scheduler at that moment."""
        return Response(explain.explain(job_id, identity(request)))


class Simulate(APIView):
    @documented(
        "What would become of a job if it were submitted now; nothing is submitted",
        tag="jobs",
        who="member",
        body=JobRequest,
        answer=Simulation,
        refusals=(400, 401, 403, 404, 413, 422, 429, 503),
    )
    def post(self, request: Request) -> Response:
        """The body is a job request, the answer a simulation. Refused as the submit would be; nothing is written. The
        same as `POST /jobs?dry_run=true`."""
        return Response(job_services.simulate(read_body(request, JobRequest), identity(request)))


class Queue(APIView):
    @documented(
        "Your waiting jobs with their position among everybody's",
        tag="scheduling",
        who="anybody",
        answer=QueuePage,
        parameters=PAGED,
    )
    def get(self, request: Request) -> Response:
        """`position` is among everybody's, by priority and age; `gpus_ahead`: what those before it ask for. Each has an
        `estimate` as in an explanation, some seconds old, where at most 2,000 jobs wait, else `estimate_reason`."""
        given = read_query(request)
        after = decode_cursor(given["cursor"], "queue", tuple[int, float, int]) if "cursor" in given else None
        found = cluster.queue(identity(request), after, page_limit(given))
        following = found.pop("next")
        return Response({**found, "next_cursor": encode_cursor("queue", *following) if following else None})


class Usage(APIView):
    @documented(
        "Show who fills the queue: waiting jobs by tenant and user (admins: all tenants)",
        tag="scheduling",
        who="anybody",
        answer=Page[QueueUsage],
    )
    def get(self, request: Request) -> Response:
        """The tenant with the most waiting jobs first, beside the limits of tenant and user. Not paged."""
        return Response({"items": queue_usage(identity(request).visible_tenants()), "next_cursor": None})


class Shares(APIView):
    @documented(
        "What each of your tenants holds and has used, by weight (admins: all tenants)",
        tag="scheduling",
        who="anybody",
        answer=Page[Share],
    )
    def get(self, request: Request) -> Response:
        """`effective_weight` is what the weight counts as, by how much it follows past use, and `weight_reason` says
        why."""
        who = identity(request)
        items = [share for share in cluster.shares() if who.sees(share["tenant_id"])]
        return Response({"items": items, "next_cursor": None})


class Cycles(APIView):
    @documented(
        "Scheduling cycles, newest first, with the time of each phase",
        tag="scheduling",
        who="admin",
        answer=Page[Cycle],
        parameters=PAGED,
    )
    def get(self, request: Request) -> Response:
        """In milliseconds."""
        identity(request).require_admin()
        given = read_query(request)
        limit = page_limit(given)
        return Response(paged(cluster.cycles(limit, cursor_number(given, "cycles")), limit, "cycles"))


class Replay(APIView):
    @documented(
        "Replay a recorded scheduling cycle, by the recorded policy or another one",
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
        """`GET /scheduling/cycles` says which cycles are recorded (`is_recorded`). Nothing is written."""
        identity(request).require_admin()
        given = read_query(request)
        job_id = whole_number(given, "job_id", 0, 1, 2**63 - 1) if "job_id" in given else None
        return Response(cycle_replay.replay(cycle_id, given.get("policy"), job_id, given.get("node")))


class ClusterStatus(APIView):
    @documented("The state of the cluster in numbers", tag="cluster", who="anybody", answer=ClusterNumbers)
    def get(self, request: Request) -> Response:
        """`pending_jobs`: waiting or held, of an array each element. `pretend`: GPUs and readings are made up."""
        return Response({**cluster.cluster_status(), "version": __version__})


class Health(APIView):
    authentication_classes = []
    permission_classes = [AllowAny]

    @documented("The web process answers", tag="cluster", who="no token", answer=HealthData, refusals=())
    def get(self, request: Request) -> Response:
        return Response({"status": "ok", "version": __version__})


# Before a node could be thought lost (GPUSCHED_NODE_LOST_SECONDS): an agent speaks every other second.
MAX_UNHEARD_SECONDS = 10.0


class Ready(APIView):
    authentication_classes = []
    permission_classes = [AllowAny]

    @documented(
        "Database and scheduler work, and agents are heard",
        tag="cluster",
        who="no token",
        answer=Readiness,
        also={503: Readiness},
        refusals=(),
    )
    def get(self, request: Request) -> Response:
        """503 if the first two do not, or if the message of an agent has waited for more than 10 s. Lost agents, a
        Redis that is away and housekeeping that stands still are told, and do not make the server unready: it goes on
        without."""
        late, unheard = None, hub.waiting_seconds()
        try:
            lag, agents = cluster.scheduler_lag(), cluster.agents()
            late = housekeeping.lag_seconds(housekeeping.task_ages())
            is_ready = bool(lag["is_alive"]) and unheard <= MAX_UNHEARD_SECONDS
            parts = {
                "database": True,
                "scheduler": bool(lag["is_alive"]),
                "cycle_age_seconds": lag["age_seconds"],
                "agents": agents,
            }
        except DatabaseError:
            is_ready, parts = False, {"database": False, "scheduler": False, "cycle_age_seconds": None, "agents": {}}
        said = {"status": "ok" if is_ready else "not ready", **parts, "redis": listener.is_redis_connected}
        said |= {"housekeeping": housekeeping.is_working(late), "housekeeping_lag_seconds": late and round(late, 1)}
        said |= {"agents_unheard_seconds": round(unheard, 1)}
        if is_ready:
            return Response(said)
        return Response(said, status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})
