"""REST for the attempts of a job: their times, nodes, and the end of each rank."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, read_query
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol import reasons
from gpusched.protocol.rest.jobs import Attempt, Page
from jobs.api.jobs import visible_job


class Attempts(APIView):
    @documented(
        "List the attempts of a job, with the end of each rank",
        tag="jobs",
        who="viewer",
        answer=Page[Attempt],
        parameters=PAGED,
    )
    def get(self, request: Request, job_id: int) -> Response:
        """`saved_at` is the last checkpoint that the job reported. Each rank has `detail`, its own times, and
        `peak_memory_mb` (MiB): of all its processes if `peak_memory_of` is `rank`, of the largest one if it is
        `process`."""
        visible_job(request, job_id)
        params = read_query(request)
        limit = page_limit(params)
        rows = query(
            "SELECT * FROM jobs_attempt WHERE job_id = %s AND number > %s ORDER BY number LIMIT %s",
            [job_id, cursor_number(params, "attempts") or 0, limit],
        )
        return Response(paged([represent_attempt(row) for row in rows], limit, "attempts", "number"))


def represent_attempt(row: dict[str, Any]) -> dict[str, Any]:
    """Represent an attempt for the API and the page."""
    state = "ended" if row["ended_at"] else "running" if row["started_at"] else "scheduled"
    return {
        "number": row["number"],
        "state": state,
        "reason": row["reason"] or None,
        "sentence": reasons.sentence(row["reason"], row["evidence"]) if row["reason"] else None,
        "class": row["evidence"].get("class"),
        "exit_code": row["exit_code"],
        "signal": row["signal"],
        "scheduled_at": rfc3339(row["scheduled_at"]),
        "started_at": rfc3339(row["started_at"]),
        "saved_at": rfc3339(row["saved_at"]),
        "ended_at": rfc3339(row["ended_at"]),
        "ranks": [_rank(rank, row["outcomes"].get(str(rank["rank"])), state) for rank in row["placement"]],
    }


def _rank(rank: dict[str, Any], outcome: dict[str, Any] | None, state: str) -> dict[str, Any]:
    ended = outcome or {}
    return {
        **rank,
        "state": "ended" if outcome else state,
        "reason": ended.get("reason"),
        "class": ended.get("class"),
        "exit_code": ended.get("exit_code"),
        "signal": ended.get("signal"),
        "detail": ended.get("detail") or None,
        "started_at": ended.get("started_at"),
        "ended_at": ended.get("ended_at"),
        "peak_memory_mb": ended.get("peak_memory_mb"),
        "peak_memory_of": ended.get("peak_memory_of"),
    }
