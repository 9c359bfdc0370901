"""REST for time limits: change the time limit of a submitted job."""

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body
from gpusched.protocol.rest.time_limits import Extended, Extension
from jobs.listing import representation
from scheduling.whatif import extend
from tenants.auth.identity import identity


class Extend(APIView):
    @documented(
        "Change the time limit of a pending or running job",
        tag="jobs",
        who="own jobs: member, else owner",
        body=Extension,
        answer=Extended,
        operation_id="jobs_extend",
        parameters={"dry_run": "true: return the effects, and change nothing"},
        refusals=(400, 401, 403, 404, 409, 429, 503),
    )
    def post(self, request: Request, job_id: int) -> Response:
        """`max_runtime_minutes` is the new limit, `add_minutes` a change of it. 409 if a waiting job is promised the
        place, unless an admin forces it. docs/rest.md, Time limits, lists who may extend which jobs."""
        extension = read_body(request, Extension)
        result = extend.extend(job_id, extension, identity(request), is_dry_run=is_dry_run(request))
        return Response({"job_id": job_id, **result, "job": representation.select("j.id = %s", [job_id])[0]})
