"""REST for the audit log."""

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
    "actor": "name of the actor",
    "action": "like quota.change, or its prefix, like quota",
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
        "List the audit log, newest first",
        tag="audit",
        who="admin",
        answer=Page[AuditEntry],
        parameters=_FILTERS,
        refusals=(400, 401, 403),
    )
    def get(self, request: Request) -> Response:
        """`action` can be a prefix: `quota` for `quota.change`. Actions on jobs are in their events instead:
        `GET /events`, `GET /jobs/{job_id}/events`."""
        identity(request).require_admin()
        filters = read_query(request)
        limit = page_limit(filters)
        params: dict[str, Any] = {name: filters.get(name) for name in ("actor", "action", "subject")}
        rows = query(_ENTRIES, {**params, "before": cursor_number(filters, "audit"), "limit": limit})
        return Response(paged([{**row, "at": rfc3339(row["at"])} for row in rows], limit, "audit"))
