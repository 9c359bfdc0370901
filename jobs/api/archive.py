"""REST for archiving a tenant, which ends the jobs that it has, and for restoring it."""

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
    """`cancel_jobs`: cancels what waits and stops what runs."""

    cancel_jobs: bool = False


class Archive(APIView):
    @documented(
        "Archive a tenant", tag="tenants", who="admin", body=ArchiveOptions, answer=ArchivedTenant,
        refusals=(400, 401, 403, 404, 409),
    )  # fmt: skip
    def post(self, request: Request, name: str) -> Response:
        """It accepts no jobs (409 `tenant_archived`), its guarantee counts for nothing, and lists leave it out; jobs,
        use and history stay readable. While it has unfinished jobs this is a 409 `tenant_has_jobs`; `cancel_jobs`
        cancels those that wait and stops those that run. Harmless when repeated."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require_admin()
        ended = archive_tenant.archive(tenant.pk, who, cancel_jobs=read_body(request, ArchiveOptions).cancel_jobs)
        return Response({**represent_tenants([tenant.pk])[0], **ended})


class Unarchive(APIView):
    @documented("Restore an archived tenant", tag="tenants", who="admin", answer=TenantData)
    def post(self, request: Request, name: str) -> Response:
        """With its quota, guarantee, budget, members and tokens, as they are by then. Harmless when repeated."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require_admin()
        archive_tenant.unarchive(tenant.pk, who)
        return Response(represent_tenants([tenant.pk])[0])
