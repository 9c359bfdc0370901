"""REST for signals to the program of a running job."""

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
        """`signal` is `HUP`, `INT`, `QUIT`, `USR1` or `USR2`. The first process of each started rank, or of its
        container, gets it once; a process that does not handle it may end. The answer does not wait for the nodes: an
        agent that is disconnected sends the signal once it is back; agents of older versions ignore it."""
        body = read_body(request, SignalRequest)
        return action_response(job_id, signals.send(job_id, body.signal, identity(request)))
