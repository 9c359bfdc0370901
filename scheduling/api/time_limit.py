"""REST of time limits: a job may run longer, or shorter, than it was submitted with."""

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
        "Change the time limit of a job that waits or runs",
        tag="jobs",
        who="own jobs: member, else owner",
        body=Extension,
        answer=Extended,
        operation_id="jobs_extend",
        parameters={"dry_run": "true: answer 200 with what would follow, and change nothing"},
        refusals=(400, 401, 403, 404, 409, 429, 503),
    )
    def post(self, request: Request, job_id: int) -> Response:
        """`max_runtime_minutes` is the new limit, `add_minutes` by how much it changes. Refused (409) where a waiting
        job is promised the place, unless an admin forces it. docs/rest.md, Time limits, says who may extend what."""
        wanted = read_body(request, Extension)
        told = extend.extend(job_id, wanted, identity(request), is_dry_run=is_dry_run(request))
        return Response({"job_id": job_id, **told, "job": representation.select("j.id = %s", [job_id])[0]})
