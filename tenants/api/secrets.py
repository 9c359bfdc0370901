"""REST for the secrets of a tenant: set, list and delete them. No answer contains a value."""

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
from tenants.api.tenants import find_tenant, owned_tenant
from tenants.auth.identity import identity


class SecretValue(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Text of at most 64 KiB, without control characters other than tabs and line ends."""

    value: str


class Secrets(APIView):
    @documented(
        "List the secrets of a tenant by name, without their values", tag="tenants", who="member", answer=Page[Secret]
    )
    def get(self, request: Request, name: str) -> Response:
        """Each with who set it and when. Not paged. No answer contains a value."""
        caller = identity(request)
        tenant = find_tenant(name, caller)
        caller.require(Role.MEMBER, tenant.pk, f"tenant '{name}'")
        return Response({"items": secrets.list_secrets(tenant), "next_cursor": None})


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
        """201 for a new name, 200 for a new value, which attempts get that start from now on. `value` is text of at
        most 64 KiB, not empty, without control characters other than tabs and line ends. A tenant has at most 64
        secrets. A name has 1 to 100 letters, digits, `.`, `_` and `-`, and does not start with a dot."""
        tenant, actor = owned_tenant(request, name), identity(request).username
        represented, is_new = secrets.set_secret(tenant, secret, read_body(request, SecretValue).value, actor=actor)
        return Response(represented, status=201 if is_new else 200)

    @documented("Delete a secret of a tenant", tag="tenants", who="owner", status=204)
    def delete(self, request: Request, name: str, secret: str) -> Response:
        """Jobs that name it and are placed afterwards end as `launch_failed`."""
        secrets.delete_secret(owned_tenant(request, name), secret, actor=identity(request).username)
        return Response(status=204)
