"""REST for the tokens of programs, which a tenant's owners manage."""

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
from tenants.api.tenants import owned_tenant
from tenants.api.tokens import represent_token, require_days
from tenants.auth import service_tokens
from tenants.auth.identity import identity


class NewServiceToken(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`name`: the program; its account is `name@tenant`. `role` null: the role of this account, else member.
    `expires_in_days` null: it does not expire."""

    name: str
    role: Literal["viewer", "member"] | None = None
    scopes: tuple[Literal["read", "write"], ...] = ("read", "write")
    expires_in_days: float | None = 365.0


class ServiceTokens(APIView):
    @documented("List the tokens of a tenant's programs", tag="tokens", who="owner", answer=Page[ServiceToken])
    def get(self, request: Request, name: str) -> Response:
        """In the format of your own tokens, with the account's `user`."""
        tenant = owned_tenant(request, name)
        items = [
            {**represent_token(token), "user": token.user.username} for token in service_tokens.list_tokens(tenant)
        ]
        return Response({"items": items, "next_cursor": None})

    @documented(
        "Create a token for a program; its text is shown only once",
        tag="tokens",
        who="owner",
        body=NewServiceToken,
        answer=IssuedServiceToken,
        status=201,
        refusals=(400, 401, 403, 404, 409),
        has_dry_run=False,
    )
    def post(self, request: Request, name: str) -> Response:
        """It belongs to an account `name@tenant` without a password, and outlives its creator. `role` is `member` or
        `viewer`; absent: that of the program's other tokens, else `member`. `scopes`: none that you lack.
        `expires_in_days` null: never. A second token of a name is for rotation: all tokens of a name have one role, and
        another role is 409 `role_differs` while one of them is active. Unlike other tokens, it can outlive the token
        that created it, and is not revoked with it."""
        tenant = owned_tenant(request, name)
        fields = read_body(request, NewServiceToken)
        if not fields.scopes:
            raise invalid([FieldError("scopes", "required", "at least one")])
        if not set(fields.scopes) <= (allowed := identity(request).scopes):
            message = f"none that you lack; yours: {', '.join(sorted(allowed))}"
            raise invalid([FieldError("scopes", "not_permitted", message)])
        require_days(fields.expires_in_days)
        scopes = [Scope(scope) for scope in fields.scopes]
        role = Role(fields.role) if fields.role else None
        token, text = service_tokens.create(tenant, fields.name, role, scopes, fields.expires_in_days)
        return Response({**represent_token(token), "user": token.user.username, "token": text}, status=201)


class OneServiceToken(APIView):
    @documented(
        "Revoke a token of a program, and those created with it", tag="tokens", who="owner", answer=RevokedServiceToken
    )
    def delete(self, request: Request, name: str, token_id: int) -> Response:
        """`also_revoked`: the ids of those created with it."""
        token, also_revoked = service_tokens.revoke(owned_tenant(request, name), token_id)
        return Response({**represent_token(token), "user": token.user.username, "also_revoked": also_revoked})
