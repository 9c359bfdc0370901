"""REST for admins: who may hold idle GPUs without being warned or ended."""

import msgspec
from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid, not_found
from gpusched.lib.api.rest import read_body
from gpusched.lib.audit import log
from gpusched.lib.db.sql import execute, query
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.cluster import Exemption
from gpusched.protocol.rest.jobs import Page
from tenants.auth.identity import identity


class NewExemption(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Of a tenant by name, or of a job by number; not of both."""

    tenant: str | None = None
    job_id: int | None = None
    note: str = ""


_ALL = """
    SELECT e.id, t.name AS tenant, e.job_id, e.note, e.created_by, e.created_at
      FROM nodes_idleexemption e LEFT JOIN tenants_all t ON t.id = e.tenant_id
     WHERE %s::bigint IS NULL OR e.id = %s ORDER BY e.id
"""
# Exempt already: it stays so, with the new note.
_ADD = """
    INSERT INTO nodes_idleexemption ({column}, note, created_by) SELECT o.id, %s, %s FROM {table} o WHERE o.{key} = %s
        ON CONFLICT ({column}) DO UPDATE SET note = excluded.note, created_by = excluded.created_by RETURNING id
"""


class Exemptions(APIView):
    @documented("Who is exempt from the rule of held but idle GPUs", tag="nodes", who="admin", answer=Page[Exemption])
    def get(self, request: Request) -> Response:
        """docs/operations.md has the rule."""
        identity(request).require_admin()
        return Response({"items": _told(None), "next_cursor": None})

    @documented(
        "Exempt a tenant, or a job, from that rule",
        tag="nodes",
        who="admin",
        body=NewExemption,
        answer=Exemption,
        status=201,
    )
    def post(self, request: Request) -> Response:
        """A `tenant` or a `job_id`, and a `note`. Exempt already: the same with the new note."""
        who = identity(request)
        who.require_admin()
        wanted = read_body(request, NewExemption)
        if (wanted.tenant is None) == (wanted.job_id is None):
            raise invalid([FieldError("tenant", "invalid", "give a tenant or a job_id, one of them")])
        if "\x00" in wanted.note + (wanted.tenant or ""):
            raise invalid([FieldError("note", "invalid_character", "must not contain a NUL character")])
        if wanted.job_id is None:
            sql = _ADD.format(column="tenant_id", table="tenants_all", key="name")
            named = f"tenant '{(wanted.tenant or '')[:63]}'"
        else:
            sql = _ADD.format(column="job_id", table="jobs_all", key="id")
            named = f"job {wanted.job_id}"
        with transaction.atomic():
            rows = query(
                sql, [wanted.note[:200], who.username, wanted.tenant if wanted.job_id is None else wanted.job_id]
            )
            if not rows:
                raise not_found(named)
            log.record("idle_exemption.create", f"exemption {rows[0]['id']}", None, msgspec.structs.asdict(wanted))
        return Response(_told(rows[0]["id"])[0], status=201)


class OneExemption(APIView):
    @documented("End an exemption", tag="nodes", who="admin", status=204)
    def delete(self, request: Request, exemption_id: int) -> Response:
        identity(request).require_admin()
        with transaction.atomic():
            before = _told(exemption_id)
            if not execute("DELETE FROM nodes_idleexemption WHERE id = %s", [exemption_id]):
                raise not_found(f"exemption {exemption_id}")
            log.record("idle_exemption.end", f"exemption {exemption_id}", before[0], None)
        return Response(status=204)


def _told(exemption_id: int | None) -> list[dict[str, object]]:
    rows = query(_ALL, [exemption_id, exemption_id])
    return [{**row, "created_at": rfc3339(row["created_at"])} for row in rows]
