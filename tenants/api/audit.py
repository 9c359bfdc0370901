"""REST for audit: who changed what, newest first."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import PAGED, cursor_number, page_limit, paged, read_query
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.records import AuditEntry
from tenants.auth.identity import identity

_FILTERS = {
    "actor": "name of who did it",
    "action": "like quota.change; or its beginning, like quota",
    "subject": "like quota nlp",
    **PAGED,
}
_ENTRIES = """
    SELECT id, at, actor, via, agent, request_id, action, subject, before, after FROM lib_audit_entries
     WHERE (%(actor)s::text IS NULL OR actor = %(actor)s) AND (%(subject)s::text IS NULL OR subject = %(subject)s)
       AND (%(action)s::text IS NULL OR action = %(action)s OR starts_with(action, %(action)s || '.'))
       AND (%(before)s::bigint IS NULL OR id < %(before)s)
     ORDER BY id DESC LIMIT %(limit)s
"""


class Audit(APIView):
    @documented(
        "Who changed what, newest first",
        tag="audit",
        who="admin",
        answer=Page[AuditEntry],
        parameters=_FILTERS,
        refusals=(400, 401, 403),
    )
    def get(self, request: Request) -> Response:
        """`action` may be the beginning of one, `quota` for `quota.change`. What is done to jobs is told by their
        events: `GET /events`, `GET /jobs/{job_id}/events`."""
        identity(request).require_admin()
        given = read_query(request)
        limit = page_limit(given)
        params: dict[str, Any] = {name: given.get(name) for name in ("actor", "action", "subject")}
        found = query(_ENTRIES, {**params, "before": cursor_number(given, "audit"), "limit": limit})
        return Response(paged([{**row, "at": rfc3339(row["at"])} for row in found], limit, "audit"))
