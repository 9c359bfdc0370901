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
from gpusched.protocol import reasons
from gpusched.protocol.states import FINAL
from jobs.api.jobs import visible_job
from jobs.logs import store
from tenants.auth.identity import identity


class Log(APIView):
    @documented(
        "The output of one rank",
        tag="jobs",
        who="viewer",
        media_types=("text/plain",),
        refusals=(400, 401, 403, 404, 410, 429),
        parameters={
            "attempt": "default: the latest",
            "rank": "default 0",
            "offset": "first byte wanted, default 0; negative: from the end",
            "tail": "most bytes wanted of the end, instead of offset and limit",
            "limit": "most bytes wanted, at most 1048576",
            "download": "true: all of it as a file, as far as it is written, however long",
        },
    )
    def get(self, request: Request, job_id: int) -> HttpResponseBase:
        """Raw bytes, read by offset: `X-Log-Attempt`, `X-Log-Offset`, `X-Log-Next-Offset` (go on from here),
        `X-Log-Size`, and `X-Log-Complete: true` once nothing more will come."""
        job = visible_job(request, job_id)
        given = read_query(request)
        number = whole_number(given, "attempt", job["attempt"], 0, 2**31 - 1)
        rank = whole_number(given, "rank", 0, 0, 2**31 - 1)
        if is_true(given, "download"):
            _final_size(job, number, rank)
            return _file(job_id, number, rank, identity(request).username)
        offset = whole_number(given, "offset", 0, -(2**62), 2**62)
        limit = whole_number(given, "limit", store.MAX_READ, 1, store.MAX_READ)
        if "tail" in given:
            limit = whole_number(given, "tail", 1, 1, store.MAX_READ)
            offset = -limit
        # First whether it is over, then the bytes: the other way round, bytes that came in between would be missed.
        is_over = _final_size(job, number, rank)
        piece = store.read(job_id, number, rank, offset, limit)
        response = HttpResponse(piece.data, content_type="text/plain; charset=utf-8")
        response["X-Log-Attempt"] = str(number)
        response["X-Log-Offset"] = str(piece.offset)
        response["X-Log-Next-Offset"] = str(piece.next_offset)
        response["X-Log-Size"] = str(piece.size)
        complete = piece.next_offset == piece.size and is_over is not None and piece.size >= is_over
        response["X-Log-Complete"] = "true" if complete else "false"
        return response


# Piece by piece, and not by many at once: of each up to 1 MiB stands in the memory of the server.
downloads = ConcurrencyLimiter(
    MAX_DOWNLOADS, MAX_DOWNLOADS_EACH, code="too_many_downloads", what="logs are being downloaded",
    instead="try again in a moment, or read it by `offset`",
)  # fmt: skip


def _file(job_id: int, attempt: int, rank: int, caller: str) -> StreamingHttpResponse:
    size = store.size_of(job_id, attempt, rank)
    name = f"job-{job_id}-attempt-{attempt}-rank-{rank}.log"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Length": str(size)}
    pieces = _chunks(job_id, attempt, rank, size)
    return downloads.streamed(caller, pieces, content_type="text/plain; charset=utf-8", headers=headers)


async def _chunks(job_id: int, attempt: int, rank: int, size: int) -> AsyncIterator[bytes]:
    read, offset = sync_to_async(store.read, thread_sensitive=False), 0
    while offset < size:
        piece = await read(job_id, attempt, rank, offset, min(store.MAX_READ, size - offset))
        if not piece.data:
            return  # deleted meanwhile: shorter than was said, which the reader notices
        offset = piece.next_offset
        yield piece.data


def _final_size(job: dict[str, Any], number: int, rank: int) -> int | None:
    """The final size of the log if it is known; None while more may come. 404 for an attempt or a rank that there has
    never been, 410 for a log that was deleted by its age."""
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
    how = rows[0]["outcomes"].get(str(rank))
    if how is not None:
        # What a lost node had written and not sent is lost with it: then what is here is all there is.
        return 0 if how["reason"] == reasons.EndReason.NODE_LOST else _least(how)
    return 0 if rows[0]["ended_at"] else None


def _least(how: dict[str, Any]) -> int:
    return store.min_complete_size(how.get("log_bytes") or 0)
