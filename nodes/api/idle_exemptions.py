"""REST for exemptions from the rule on held but idle GPUs."""

import msgspec
from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid, not_found, still_there
from gpusched.lib.api.rest import read_body
from gpusched.lib.audit import log
from gpusched.lib.db.sql import execute, query
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.cluster import Exemption
from gpusched.protocol.rest.jobs import Page
from tenants.auth.identity import identity


class NewExemption(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """An exemption for a tenant, by name, or for a job, by number; not for both."""

    tenant: str | None = None
    job_id: int | None = None
    note: str = ""


_ALL = """
    SELECT e.id, t.name AS tenant, e.job_id, e.note, e.created_by, e.created_at
      FROM nodes_idleexemption e LEFT JOIN tenants_all t ON t.id = e.tenant_id
     WHERE %s::bigint IS NULL OR e.id = %s ORDER BY e.id
"""
# An existing exemption gets the new note.
_ADD = """
    INSERT INTO nodes_idleexemption ({column}, note, created_by) SELECT o.id, %s, %s FROM {table} o WHERE o.{key} = %s
        ON CONFLICT ({column}) DO UPDATE SET note = excluded.note, created_by = excluded.created_by RETURNING id
"""


class Exemptions(APIView):
    @documented("List exemptions from the rule on held but idle GPUs", tag="nodes", who="admin", answer=Page[Exemption])
    def get(self, request: Request) -> Response:
        """docs/operations.md describes the rule."""
        identity(request).require_admin()
        return Response({"items": _represent(None), "next_cursor": None})

    @documented(
        "Exempt a tenant or a job from the rule on held but idle GPUs",
        tag="nodes",
        who="admin",
        body=NewExemption,
        answer=Exemption,
        status=201,
    )
    def post(self, request: Request) -> Response:
        """Needs a `tenant` or a `job_id`, and takes a `note`. An existing exemption gets the new note."""
        caller = identity(request)
        caller.require_admin()
        exemption = read_body(request, NewExemption)
        if (exemption.tenant is None) == (exemption.job_id is None):
            raise invalid([FieldError("tenant", "invalid", "set either tenant or job_id")])
        if "\x00" in exemption.note + (exemption.tenant or ""):
            raise invalid([FieldError("note", "invalid_character", "must not contain a NUL character")])
        if exemption.job_id is None:
            sql = _ADD.format(column="tenant_id", table="tenants_all", key="name")
            subject = f"tenant '{(exemption.tenant or '')[:63]}'"
        else:
            sql = _ADD.format(column="job_id", table="jobs_all", key="id")
            subject = f"job {exemption.job_id}"
        with transaction.atomic():
            rows = query(
                sql,
                [
                    exemption.note[:200],
                    caller.username,
                    exemption.tenant if exemption.job_id is None else exemption.job_id,
                ],
            )
            if not rows:
                raise not_found(subject)
            log.record("idle_exemption.create", f"exemption {rows[0]['id']}", None, msgspec.structs.asdict(exemption))
        return Response(still_there(_represent(rows[0]["id"]), f"exemption {rows[0]['id']}"), status=201)


class OneExemption(APIView):
    @documented("End an exemption", tag="nodes", who="admin", status=204)
    def delete(self, request: Request, exemption_id: int) -> Response:
        identity(request).require_admin()
        with transaction.atomic():
            previous = _represent(exemption_id)
            if not execute("DELETE FROM nodes_idleexemption WHERE id = %s", [exemption_id]):
                raise not_found(f"exemption {exemption_id}")
            log.record("idle_exemption.end", f"exemption {exemption_id}", previous[0], None)
        return Response(status=204)


def _represent(exemption_id: int | None) -> list[dict[str, object]]:
    rows = query(_ALL, [exemption_id, exemption_id])
    return [{**row, "created_at": rfc3339(row["created_at"])} for row in rows]
