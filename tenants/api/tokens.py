"""REST for one's own tokens and identity, and the login that gives a token for a password."""

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
from tenants.auth.identity import Anybody, Identity, identity
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


def token_shown(token: ApiToken) -> dict[str, Any]:
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
    """400 unless it is a life that a token may have."""
    if days is not None and not 0 < days <= 3650:
        raise invalid([FieldError("expires_in_days", "out_of_range", "more than 0, at most 3650, or null")])


class Tokens(APIView):
    @documented(
        "List your tokens; asked with one for a tenant, those for it", tag="tokens", who="anybody", answer=Page[Token]
    )
    def get(self, request: Request) -> Response:
        """Without their text. `made_by`: the id of the token that made it, else null."""
        mine = _own(identity(request)).select_related("tenant")
        return Response({"items": [token_shown(token) for token in mine], "next_cursor": None})

    @documented(
        "Create a token; its text is shown this once",
        tag="tokens",
        who="anybody",
        body=NewToken,
        answer=IssuedToken,
        status=201,
        has_dry_run=False,
    )
    def post(self, request: Request) -> Response:
        """`scopes`: none that you lack; `tenant` limits it to one (an admin's is then an owner's, and needs the scope
        `admin` to be made); `expires_in_days` null: never. Made with a token, it
        lives no longer and reaches no further than that one, and is revoked with it."""
        who = identity(request)
        wanted = read_body(request, NewToken)
        if not 1 <= len(wanted.name) <= 100 or "\x00" in wanted.name:
            raise invalid([FieldError("name", "out_of_range", "1 to 100 characters")])
        if not wanted.scopes or not set(wanted.scopes) <= who.scopes:
            message = f"at least one, and none that you lack; yours: {', '.join(sorted(who.scopes))}"
            raise invalid([FieldError("scopes", "not_permitted", message)])
        require_days(wanted.expires_in_days)
        if wanted.tenant and who.is_admin:
            who.require_admin()  # it would be an owner's
        # A token must not make one that reaches further, or lives longer.
        tenant_id = find_tenant(wanted.tenant, who).pk if wanted.tenant else who.limited_to
        ends = [end for end in (tokens.expiry(wanted.expires_in_days), who.expires_at) if end is not None]
        token, text = tokens.create_token(
            who.user_id,
            wanted.name,
            list(wanted.scopes),
            tenant_id=tenant_id,
            expires_at=min(ends, default=None),
            made_by=who.token_prefix,
        )
        return Response({**token_shown(token), "token": text}, status=201)


class OneToken(APIView):
    @documented("Revoke one of your tokens, and those made with it", tag="tokens", who="its user", answer=RevokedToken)
    def delete(self, request: Request, token_id: int) -> Response:
        """And with those, those made with them (`also_revoked`: their ids). One that is for a tenant finds no
        others."""
        token = _own(identity(request)).filter(pk=token_id).first()
        if token is None:
            raise not_found(f"token {token_id}")
        others = tokens.revoke_token(token)
        token.refresh_from_db()
        return Response({**token_shown(token), "also_revoked": others})


def _own(who: Identity) -> QuerySet[ApiToken]:
    """The caller's tokens; of other tenants than its own a token that is limited to one knows none."""
    mine = ApiToken.objects.filter(user_id=who.user_id)
    return mine if who.limited_to is None else mine.filter(tenant_id=who.limited_to)


class Me(APIView):
    @documented("Who you are and what you may do", tag="tokens", who="anybody", answer=MeData)
    def get(self, request: Request) -> Response:
        who = identity(request)
        open_roles = {tenant_id: role for tenant_id, role in who.roles.items() if tenant_id not in who.archived}
        roles = [{"name": who.tenant_names[i], "role": role} for i, role in sorted(open_roles.items())]
        return Response(
            {"user": who.username, "is_admin": who.is_admin, "scopes": sorted(who.scopes), "tenants": roles}
        )


class LogIn(APIView):
    authentication_classes = []
    permission_classes = [Anybody]

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
        """For 90 days, with all scopes that the user may have. `new_password` replaces the password; with a one-time
        password it is needed (403 `password_change_required`)."""
        wanted = read_body(request, Login)
        if "\x00" in wanted.username + wanted.password + wanted.token_name:
            raise invalid([FieldError("username", "invalid_character", "must not contain a NUL character")])
        user = authenticate(
            request._request, username=wanted.username, password=wanted.password, new_password=wanted.new_password
        )
        if user is None:
            raise Problem(401, "not_authenticated", "wrong name or password", next_step="check both and try again")
        log.act_as(user.get_username(), "password")
        scopes = [Scope.READ, Scope.WRITE, *([Scope.ADMIN] if user.is_superuser else [])]
        name = wanted.token_name[:100] or "login"
        token, text = tokens.create_token(user.pk, name, list(scopes), expires_at=tokens.expiry(90))
        return Response({**token_shown(token), "token": text}, status=201)
