"""REST for the logs of jobs."""

from collections.abc import AsyncIterator
from typing import Any

from asgiref.sync import sync_to_async
from django.http import HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.request import Request
from rest_framework.views import APIView

from gpusched.lib.api.concurrency_limit import ConcurrencyLimiter
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.api.rest import is_true, read_query, whole_number
from gpusched.lib.db.sql import query
from gpusched.lib.limits import MAX_DOWNLOADS, MAX_DOWNLOADS_EACH
from gpusched.lib.times import rfc3339
from gpusched.lib.web.deferred import BrokenResponse
from gpusched.protocol import reasons
from gpusched.protocol.states import FINAL
from jobs.api.jobs import visible_job
from jobs.logs import store
from tenants.auth.identity import identity


class Log(APIView):
    @documented(
        "Read the output of one rank",
        tag="jobs",
        who="viewer",
        media_types=("text/plain",),
        refusals=(400, 401, 403, 404, 410, 429),
        parameters={
            "attempt": "default: the latest",
            "rank": "default 0",
            "offset": "first byte, default 0; negative: from the end",
            "tail": "maximum bytes from the end, instead of offset and limit",
            "limit": "maximum bytes, up to 1048576",
            "download": "true: the full log so far as a file, of any length",
        },
    )
    def get(self, request: Request, job_id: int) -> HttpResponseBase:
        """Returns raw bytes by offset, with `X-Log-Attempt`, `X-Log-Offset`, `X-Log-Next-Offset` (continue there),
        `X-Log-Size`, and `X-Log-Complete: true` once the log is complete."""
        job = visible_job(request, job_id)
        params = read_query(request)
        number = whole_number(params, "attempt", job["attempt"], 0, 2**31 - 1)
        rank = whole_number(params, "rank", 0, 0, 2**31 - 1)
        if is_true(params, "download"):
            _final_size(job, number, rank)
            return _file(job_id, number, rank, identity(request).username)
        offset = whole_number(params, "offset", 0, -(2**62), 2**62)
        limit = whole_number(params, "limit", store.MAX_READ, 1, store.MAX_READ)
        if "tail" in params:
            limit = whole_number(params, "tail", 1, 1, store.MAX_READ)
            offset = -limit
        # The final size first: read after the bytes, it would hide bytes that arrive in between.
        final_size = _final_size(job, number, rank)
        chunk = store.read(job_id, number, rank, offset, limit)
        response = HttpResponse(chunk.data, content_type="text/plain; charset=utf-8")
        response["X-Log-Attempt"] = str(number)
        response["X-Log-Offset"] = str(chunk.offset)
        response["X-Log-Next-Offset"] = str(chunk.next_offset)
        response["X-Log-Size"] = str(chunk.size)
        complete = chunk.next_offset == chunk.size and final_size is not None and chunk.size >= final_size
        response["X-Log-Complete"] = "true" if complete else "false"
        return response


# Limited, since each download holds up to 1 MiB in the server's memory.
downloads = ConcurrencyLimiter(
    MAX_DOWNLOADS, MAX_DOWNLOADS_EACH, code="too_many_downloads", subject="logs are being downloaded",
    next_step="try again in a moment, or read it by `offset`",
)  # fmt: skip


def _file(job_id: int, attempt: int, rank: int, caller: str) -> StreamingHttpResponse:
    size = store.size_of(job_id, attempt, rank)
    name = f"job-{job_id}-attempt-{attempt}-rank-{rank}.log"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(size)}
    chunks = _chunks(job_id, attempt, rank, size)
    return downloads.streamed(caller, chunks, content_type="text/plain; charset=utf-8", headers=headers)


async def _chunks(job_id: int, attempt: int, rank: int, size: int) -> AsyncIterator[bytes]:
    read, offset = sync_to_async(store.read, thread_sensitive=False), 0
    while offset < size:
        chunk = await read(job_id, attempt, rank, offset, min(store.MAX_READ, size - offset))
        if not chunk.data:
            raise BrokenResponse(f"the log of job {job_id} was deleted meanwhile")
        offset = chunk.next_offset
        yield chunk.data


def _final_size(job: dict[str, Any], number: int, rank: int) -> int | None:
    """Return the final size of the log if it is known, None while it may grow. 404 for an attempt or a rank that has
    never existed, 410 for a log that retention deleted."""
    rows = query(
        "SELECT ranks, ended_at, outcomes, log_dropped_at FROM jobs_attempt WHERE job_id = %s AND number = %s",
        [job["id"], number],
    )
    if number > job["attempt"]:
        raise not_found(f"attempt {number} of job {job['id']}", f"its latest is {job['attempt']}")
    if not rows:
        return 0 if job["state"] in FINAL else None
    if rank >= rows[0]["ranks"]:
        raise not_found(f"rank {rank} of job {job['id']}", f"attempt {number} has ranks 0 to {rows[0]['ranks'] - 1}")
    if rows[0]["log_dropped_at"]:
        raise Problem(410, "log_deleted", f"this log was deleted at {rfc3339(rows[0]['log_dropped_at'])}, by its age")
    outcome = rows[0]["outcomes"].get(str(rank))
    if outcome is not None:
        # The unsent output of a lost node is lost: the log is complete as it is.
        is_lost = outcome["reason"] == reasons.EndReason.NODE_LOST
        return 0 if is_lost else store.min_complete_size(outcome.get("log_bytes") or 0)
    return 0 if rows[0]["ended_at"] else None
