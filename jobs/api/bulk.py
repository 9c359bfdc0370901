"""REST for many jobs in one request."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.api.rest import decode, raw_body
from gpusched.protocol.bulk import MAX_ERRORS, BulkRequest, field_path
from gpusched.protocol.job_request import FieldError, JobRequest, validate
from gpusched.protocol.reasons import fix_plurals
from gpusched.protocol.rest.jobs import BulkActed
from jobs.submit.bulk import submit_all
from tenants import buckets
from tenants.auth.identity import identity


class _Unread(msgspec.Struct):
    """A bulk whose jobs are decoded separately, to name the invalid ones."""

    jobs: list[msgspec.Raw]


class Bulk(APIView):
    @documented(
        "Submit many jobs, all or none",
        tag="jobs",
        who="member",
        body=BulkRequest,
        answer=BulkActed,
        status=201,
        also={200: BulkActed},
        refusals=(400, 401, 403, 404, 409, 413, 422, 429),
        parameters={"dry_run": "true: check all jobs, answer 200, and submit nothing"},
    )
    def post(self, request: Request) -> Response:
        """1 to 10,000 job requests, all submitted or none, answered once all are durable; `job_ids` in the order of the
        request. Errors, at most 100, name the job by its number from 0: `jobs[3].gpu_count`. Each job takes a token of
        the buckets that limit `jobs`."""
        is_dry = is_dry_run(request)
        requests = _read(raw_body(request) or b"{}")
        result = submit_all(requests, identity(request), is_dry_run=is_dry)
        outcome = "would be submitted; nothing was" if is_dry else "are in the queue"
        answer = {
            "status": "would_be_submitted" if is_dry else "submitted",
            "message": fix_plurals(f"{len(requests)} jobs {outcome}"),
            "count": len(requests),
            "job_ids": result.ids,
        }
        headers = {"Queue-Warning": result.warning} if result.warning else {}
        headers |= buckets.headers(result.room)
        return Response(answer, status=200 if is_dry else 201, headers=headers)


def _read(raw: bytes) -> list[JobRequest]:
    """Decode the jobs of a body. Report wrong types job by job."""
    try:
        return decode(raw, BulkRequest).jobs
    except Problem:
        try:
            unread = msgspec.json.decode(raw, type=_Unread).jobs
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            unread = []
        if errors := _errors_of(unread):
            raise invalid(errors, at_most=MAX_ERRORS) from None
        raise


def _errors_of(unread: list[msgspec.Raw]) -> list[FieldError]:
    errors: list[FieldError] = []
    for number, job in enumerate(unread):
        try:
            decode(bytes(job), JobRequest, validate)
        except Problem as problem:
            errors += [
                FieldError(field_path(number, error.field), error.code, error.message) for error in problem.errors
            ]
        if len(errors) >= MAX_ERRORS:
            break
    return errors
