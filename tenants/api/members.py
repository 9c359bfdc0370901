"""REST for the members of a tenant, which its owners manage."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import read_body
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.access import TenantMember
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.states import Role
from tenants.api.tenants import find_tenant, owned_tenant
from tenants.auth.identity import identity
from tenants.people import members


class NewMember(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`user`: the name of an account that may log in."""

    user: str
    role: Role = Role.MEMBER


class MemberRole(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    role: Role


class Members(APIView):
    @documented("List the members of a tenant", tag="tenants", who="viewer", answer=Page[TenantMember])
    def get(self, request: Request, name: str) -> Response:
        """Owners first, including service accounts (`kind` service). Not paged."""
        tenant = find_tenant(name, identity(request))
        return Response({"items": members.list_members(tenant), "next_cursor": None})

    @documented(
        "Add a member", tag="tenants", who="owner", body=NewMember, answer=TenantMember, status=201,
        refusals=(400, 401, 403, 404, 409),
    )  # fmt: skip
    def post(self, request: Request, name: str) -> Response:
        """`user` is the name of an account that may log in; `role`: `viewer`, `member` or `owner`. 409
        `already_member`, or `managed_by_provider` if the identity provider manages it."""
        tenant = owned_tenant(request, name)
        fields = read_body(request, NewMember)
        if "\x00" in fields.user:
            raise invalid([FieldError("user", "invalid_character", "must not contain a NUL character")])
        return Response(members.add(tenant, fields.user, fields.role), status=201)


class OneMember(APIView):
    @documented(
        "Change the role of a member", tag="tenants", who="owner", body=MemberRole, answer=TenantMember,
        refusals=(400, 401, 403, 404, 409),
    )  # fmt: skip
    def patch(self, request: Request, name: str, username: str) -> Response:
        """Applies from the next request on. The last owner cannot change (409 `last_owner`); the role of a service
        account comes with its tokens (409 `service_account`)."""
        tenant = owned_tenant(request, name)
        return Response(members.set_role(tenant, username, read_body(request, MemberRole).role))

    @documented("Remove a member", tag="tenants", who="owner", status=204, refusals=(400, 401, 403, 404, 409))
    def delete(self, request: Request, name: str, username: str) -> Response:
        """Applies from the next request on, also for tokens. Jobs continue, and owners can cancel them. The last owner
        cannot be removed (409 `last_owner`)."""
        members.remove(owned_tenant(request, name), username)
        return Response(status=204)
