"""REST for the tokens of programs: a tenant's owners make, list and revoke them."""

from typing import Literal

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import read_body
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.access import IssuedServiceToken, RevokedServiceToken, ServiceToken
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.states import Role, Scope
from tenants.api.tenants import find_tenant
from tenants.api.tokens import require_days, token_shown
from tenants.auth import service_tokens
from tenants.auth.identity import identity
from tenants.models import Tenant


class NewServiceToken(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`name`: of the program; its account is `name@tenant`. `role` null: the one that this account has, else member.
    `expires_in_days` null: it does not expire."""

    name: str
    role: Literal["viewer", "member"] | None = None
    scopes: tuple[Literal["read", "write"], ...] = ("read", "write")
    expires_in_days: float | None = 365.0


class ServiceTokens(APIView):
    @documented("The tokens of a tenant's programs", tag="tokens", who="owner", answer=Page[ServiceToken])
    def get(self, request: Request, name: str) -> Response:
        """As own tokens, with the account's `user`."""
        tenant = _owned(request, name)
        items = [{**token_shown(token), "user": token.user.username} for token in service_tokens.listed(tenant)]
        return Response({"items": items, "next_cursor": None})

    @documented(
        "Create a token for a program; its text is shown this once",
        tag="tokens",
        who="owner",
        body=NewServiceToken,
        answer=IssuedServiceToken,
        status=201,
        refusals=(400, 401, 403, 404, 409),
        has_dry_run=False,
    )
    def post(self, request: Request, name: str) -> Response:
        """It belongs to an account `name@tenant` without a password, and outlives its maker. `role` is `member` or
        `viewer`; left out: that of the program's other tokens, else `member`. `scopes`: none that you lack.
        `expires_in_days` null: never. A second one of the same name is one to change over to: all of a name have one
        role, and another is 409 `role_differs` while one of them is in use. It is the one kind of token that may
        outlive the token with which it was made, and is not revoked with it."""
        tenant = _owned(request, name)
        wanted = read_body(request, NewServiceToken)
        if not wanted.scopes:
            raise invalid([FieldError("scopes", "required", "at least one")])
        if not set(wanted.scopes) <= (held := identity(request).scopes):
            message = f"none that you lack; yours: {', '.join(sorted(held))}"
            raise invalid([FieldError("scopes", "not_permitted", message)])
        require_days(wanted.expires_in_days)
        scopes = [Scope(scope) for scope in wanted.scopes]
        role = Role(wanted.role) if wanted.role else None
        token, text = service_tokens.create(tenant, wanted.name, role, scopes, wanted.expires_in_days)
        return Response({**token_shown(token), "user": token.user.username, "token": text}, status=201)


class OneServiceToken(APIView):
    @documented(
        "Revoke a token of a program, and those made with it", tag="tokens", who="owner", answer=RevokedServiceToken
    )
    def delete(self, request: Request, name: str, token_id: int) -> Response:
        """`also_revoked`: the ids of those made with it."""
        token, others = service_tokens.revoke(_owned(request, name), token_id)
        return Response({**token_shown(token), "user": token.user.username, "also_revoked": others})


def _owned(request: Request, name: str) -> Tenant:
    who = identity(request)
    tenant = find_tenant(name, who)
    who.require(Role.OWNER, tenant.pk, f"tenant '{name}'")
    return tenant
