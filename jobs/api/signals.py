"""REST of signals: what a running program is told by one."""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body
from gpusched.protocol.rest.jobs import Acted
from gpusched.protocol.signals import SignalRequest
from jobs.actions import signals
from jobs.api.jobs import action_response
from tenants.auth.identity import identity


class Signal(APIView):
    @documented(
        "Send a signal to the program of a running job",
        tag="jobs",
        who="own jobs: member, else owner",
        body=SignalRequest,
        answer=Acted,
        operation_id="jobs_signal",
        refusals=(400, 401, 403, 404, 409, 413),
    )
    def post(self, request: Request, job_id: int) -> Response:
        """`signal` is `HUP`, `INT`, `QUIT`, `USR1` or `USR2`. The first process of each rank that has started gets it
        once, in a container the first process there; one that does not expect it may end by it. What its nodes
        do is not waited for: an agent that is away sends it when it is back, and one of a version before this never."""
        wanted = read_body(request, SignalRequest)
        return action_response(job_id, signals.send(job_id, wanted.signal, identity(request)))
