"""REST for archiving a tenant, which ends its jobs, and for restoring it."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body
from gpusched.protocol.rest.cluster import ArchivedTenant
from gpusched.protocol.rest.cluster import Tenant as TenantData
from jobs.actions import archive_tenant
from tenants.api.tenants import find_tenant, represent_tenants
from tenants.auth.identity import identity


class ArchiveOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`cancel_jobs`: cancel waiting jobs and stop live ones."""

    cancel_jobs: bool = False


class Archive(APIView):
    @documented(
        "Archive a tenant", tag="tenants", who="admin", body=ArchiveOptions, answer=ArchivedTenant,
        refusals=(400, 401, 403, 404, 409),
    )  # fmt: skip
    def post(self, request: Request, name: str) -> Response:
        """An archived tenant accepts no jobs (409 `tenant_archived`), its guarantee is not reserved, and lists omit it;
        its jobs, use and history stay readable. 409 `tenant_has_jobs` while it has unfinished jobs, unless
        `cancel_jobs` cancels the waiting ones and stops the running ones. Harmless when repeated."""
        caller = identity(request)
        tenant = find_tenant(name, caller)
        caller.require_admin()
        ended = archive_tenant.archive(tenant.pk, caller, cancel_jobs=read_body(request, ArchiveOptions).cancel_jobs)
        return Response({**represent_tenants([tenant.pk])[0], **ended})


class Unarchive(APIView):
    @documented("Restore an archived tenant", tag="tenants", who="admin", answer=TenantData)
    def post(self, request: Request, name: str) -> Response:
        """The tenant keeps its current quota, guarantee, budget, members and tokens. Harmless when repeated."""
        caller = identity(request)
        tenant = find_tenant(name, caller)
        caller.require_admin()
        archive_tenant.unarchive(tenant.pk, caller)
        return Response(represent_tenants([tenant.pk])[0])
