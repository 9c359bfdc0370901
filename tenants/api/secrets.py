"""REST for the secrets of a tenant: set, list and delete them; no answer ever has a value."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body
from gpusched.protocol.rest.access import Secret
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.states import Role
from tenants import secrets
from tenants.api.tenants import find_tenant
from tenants.auth.identity import identity


class SecretValue(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Text of at most 64 KiB, without control characters but tabs and ends of lines."""

    value: str


class Secrets(APIView):
    @documented(
        "The secrets of a tenant by name, without their values", tag="tenants", who="member", answer=Page[Secret]
    )
    def get(self, request: Request, name: str) -> Response:
        """Who set each when; not paged. No answer has a value."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require(Role.MEMBER, tenant.pk, f"tenant '{name}'")
        return Response({"items": secrets.listed(tenant), "next_cursor": None})


class OneSecret(APIView):
    @documented(
        "Set a secret of a tenant",
        tag="tenants",
        who="owner",
        body=SecretValue,
        answer=Secret,
        status=201,
        also={200: Secret},
    )
    def put(self, request: Request, name: str, secret: str) -> Response:
        """201 for a new name, 200 for a new value: attempts that start from now on get it. `value` is text of at most
        64 KiB, not empty, without control characters but tabs and ends of lines. A tenant has at most 64; a name is 1
        to 100 letters, digits, `.`, `_`, `-`, and no dot first."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require(Role.OWNER, tenant.pk, f"tenant '{name}'")
        shown, is_new = secrets.set_secret(tenant, secret, read_body(request, SecretValue).value, actor=who.username)
        return Response(shown, status=201 if is_new else 200)

    @documented("Delete a secret of a tenant", tag="tenants", who="owner", status=204)
    def delete(self, request: Request, name: str, secret: str) -> Response:
        """Jobs that name it and get their orders afterwards end as `launch_failed`."""
        who = identity(request)
        tenant = find_tenant(name, who)
        who.require(Role.OWNER, tenant.pk, f"tenant '{name}'")
        secrets.delete(tenant, secret, actor=who.username)
        return Response(status=204)
