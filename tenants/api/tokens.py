"""REST for the caller's own tokens and identity, and the login that exchanges a password for a token."""

from typing import Any

import msgspec
from django.contrib.auth import authenticate
from django.db.models import QuerySet
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.api.rest import read_body
from gpusched.lib.audit import log
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.access import IssuedToken, RevokedToken, Token
from gpusched.protocol.rest.access import Me as MeData
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.states import Scope
from tenants.api.tenants import find_tenant
from tenants.auth import tokens
from tenants.auth.identity import AnyCaller, Identity, identity
from tenants.models import ApiToken


class NewToken(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`tenant` limits the token to one tenant; `expires_in_days` null: it does not expire."""

    name: str
    scopes: tuple[Scope, ...] = (Scope.READ, Scope.WRITE)
    tenant: str | None = None
    expires_in_days: float | None = 90.0


class Login(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`new_password` replaces the password; a one-time password needs it."""

    username: str
    password: str
    token_name: str = "login"
    new_password: str | None = None


def represent_token(token: ApiToken) -> dict[str, Any]:
    return {
        "id": token.pk,
        "name": token.name,
        "prefix": token.prefix,
        "scopes": token.scopes,
        "tenant": token.tenant.name if token.tenant else None,
        "made_by": token.made_by_id,
        "created_at": rfc3339(token.created_at),
        "expires_at": rfc3339(token.expires_at),
        "last_used_at": rfc3339(token.last_used_at),
        "revoked_at": rfc3339(token.revoked_at),
    }


def require_days(days: float | None) -> None:
    """Raise a 400 for an invalid lifetime of a token."""
    if days is not None and not 0 < days <= 3650:
        raise invalid([FieldError("expires_in_days", "out_of_range", "more than 0, at most 3650, or null")])


class Tokens(APIView):
    @documented(
        "List your tokens; with a token for a tenant, those for that tenant",
        tag="tokens",
        who="anybody",
        answer=Page[Token],
    )
    def get(self, request: Request) -> Response:
        """Without their text. `made_by`: the id of the token that created it, else null."""
        mine = _tokens_of(identity(request)).select_related("tenant")
        return Response({"items": [represent_token(token) for token in mine], "next_cursor": None})

    @documented(
        "Create a token; its text is shown only once",
        tag="tokens",
        who="anybody",
        body=NewToken,
        answer=IssuedToken,
        status=201,
        has_dry_run=False,
    )
    def post(self, request: Request) -> Response:
        """`scopes`: none that you lack. `tenant` limits it to one tenant (an admin's token then acts as an owner, and
        creating it needs the scope `admin`). `expires_in_days` null: never. A token created with a token has no longer
        lifetime and no wider access than that one, and is revoked with it."""
        caller = identity(request)
        fields = read_body(request, NewToken)
        if not 1 <= len(fields.name) <= 100 or "\x00" in fields.name:
            raise invalid([FieldError("name", "out_of_range", "1 to 100 characters")])
        if not fields.scopes or not set(fields.scopes) <= caller.scopes:
            message = f"at least one, and none that you lack; yours: {', '.join(sorted(caller.scopes))}"
            raise invalid([FieldError("scopes", "not_permitted", message)])
        require_days(fields.expires_in_days)
        if fields.tenant and caller.is_admin:
            caller.require_admin()  # it would act as an owner
        # A token must not create one with wider access or a longer lifetime.
        tenant_id = find_tenant(fields.tenant, caller).pk if fields.tenant else caller.limited_to
        ends = [end for end in (tokens.expires_after(fields.expires_in_days), caller.expires_at) if end is not None]
        token, text = tokens.create_token(
            caller.user_id,
            fields.name,
            list(fields.scopes),
            tenant_id=tenant_id,
            expires_at=min(ends, default=None),
            made_by=caller.token_prefix,
        )
        return Response({**represent_token(token), "token": text}, status=201)


class OneToken(APIView):
    @documented(
        "Revoke one of your tokens, and those created with it", tag="tokens", who="its user", answer=RevokedToken
    )
    def delete(self, request: Request, token_id: int) -> Response:
        """Includes tokens created with those (`also_revoked`: their ids). A token for a tenant cannot revoke tokens of
        others."""
        token = _tokens_of(identity(request)).filter(pk=token_id).first()
        if token is None:
            raise not_found(f"token {token_id}")
        also_revoked = tokens.revoke_token(token)
        token.refresh_from_db()
        return Response({**represent_token(token), "also_revoked": also_revoked})


def _tokens_of(caller: Identity) -> QuerySet[ApiToken]:
    """Return the caller's tokens. A token for one tenant sees only tokens for that tenant."""
    mine = ApiToken.objects.filter(user_id=caller.user_id)
    return mine if caller.limited_to is None else mine.filter(tenant_id=caller.limited_to)


class Me(APIView):
    @documented("Read your identity and roles", tag="tokens", who="anybody", answer=MeData)
    def get(self, request: Request) -> Response:
        caller = identity(request)
        open_roles = {tenant_id: role for tenant_id, role in caller.roles.items() if tenant_id not in caller.archived}
        roles = [{"name": caller.tenant_names[i], "role": role} for i, role in sorted(open_roles.items())]
        return Response(
            {"user": caller.username, "is_admin": caller.is_admin, "scopes": sorted(caller.scopes), "tenants": roles}
        )


class LogIn(APIView):
    authentication_classes = []
    permission_classes = [AnyCaller]

    @documented(
        "Exchange a name and password for a token",
        tag="tokens",
        who="no token",
        body=Login,
        answer=IssuedToken,
        status=201,
        refusals=(400, 401, 403, 429),
        has_dry_run=False,
    )
    def post(self, request: Request) -> Response:
        """Valid for 90 days, with all scopes that the user may have. `new_password` replaces the password; a one-time
        password needs it (403 `password_change_required`)."""
        fields = read_body(request, Login)
        if "\x00" in fields.username + fields.password + fields.token_name:
            raise invalid([FieldError("username", "invalid_character", "must not contain a NUL character")])
        user = authenticate(
            request._request, username=fields.username, password=fields.password, new_password=fields.new_password
        )
        if user is None:
            raise Problem(401, "not_authenticated", "wrong name or password", next_step="check both and try again")
        log.act_as(user.get_username(), "password")
        scopes = [Scope.READ, Scope.WRITE, *([Scope.ADMIN] if user.is_superuser else [])]
        name = fields.token_name[:100] or "login"
        token, text = tokens.create_token(user.pk, name, list(scopes), expires_at=tokens.expires_after(90))
        return Response({**represent_token(token), "token": text}, status=201)
