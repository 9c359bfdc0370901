"""REST for audit: who changed what, newest first."""

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.client.models import Page
from gpusched.client.records import AuditEntry
from gpusched.lib.api import decode_cursor, encode_cursor, page_limit, read_query
from gpusched.lib.openapi import documented
from gpusched.lib.sql import query
from gpusched.lib.times import rfc3339
from tenants.permissions import identity

_FILTERS = {
    "actor": "name of who did it",
    "action": "like quota.change; or its beginning, like quota",
    "subject": "like quota nlp",
    "limit": "1 to 1000, default 100",
    "cursor": "next_cursor of the page before",
}
_ENTRIES = """
    SELECT id, at, actor, via, agent, request_id, action, subject, before, after FROM lib_auditentry
     WHERE (%(actor)s::text IS NULL OR actor = %(actor)s) AND (%(subject)s::text IS NULL OR subject = %(subject)s)
       AND (%(action)s::text IS NULL OR action = %(action)s OR starts_with(action, %(action)s || '.'))
       AND (%(before)s::bigint IS NULL OR id < %(before)s)
     ORDER BY id DESC LIMIT %(limit)s
"""


class Audit(APIView):
    @documented(
        "Who changed what, newest first (admin)",
        tag="audit",
        answer=Page[AuditEntry],
        parameters=_FILTERS,
        refusals=(400, 401, 403),
    )
    def get(self, request: Request) -> Response:
        identity(request).require_admin()
        given = read_query(request, _FILTERS)
        limit = page_limit(given)
        params: dict[str, Any] = {name: given.get(name) for name in ("actor", "action", "subject")}
        before = decode_cursor(given["cursor"], tuple[int])[0] if "cursor" in given else None
        found = query(_ENTRIES, {**params, "before": before, "limit": limit})
        more = encode_cursor(found[-1]["id"]) if len(found) == limit else None
        return Response({"items": [{**row, "at": rfc3339(row["at"])} for row in found], "next_cursor": more})
