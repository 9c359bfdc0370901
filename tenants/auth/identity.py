"""Authenticate and authorize callers: tokens, page sessions, scopes and roles."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec
from django.contrib.auth.models import AbstractBaseUser, User
from django.http import HttpRequest
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from gpusched.lib.api import rate_limits
from gpusched.lib.api.problems import Problem, not_found
from gpusched.lib.api.rest import check_query, read_body
from gpusched.lib.audit import log
from gpusched.lib.auth import credentials
from gpusched.lib.db.grouping import Grouped
from gpusched.lib.db.sql import execute, prepared, query
from gpusched.protocol.states import Role, Scope
from tenants.models import BucketUse

_RANK = {Role.VIEWER: 1, Role.MEMBER: 2, Role.OWNER: 3}
ALL_SCOPES = frozenset(Scope)
_WITH_SCOPE_ADMIN = "use an admin's token with scope admin"


@dataclass(frozen=True)
class Identity:
    """The user behind a request, and the tenants that the user and the token reach."""

    user_id: int
    username: str
    is_admin: bool
    scopes: frozenset[str]
    roles: dict[int, Role] = field(default_factory=dict)
    tenant_names: dict[int, str] = field(default_factory=dict)
    archived: frozenset[int] = frozenset()  # tenants in `roles` that accept no jobs
    via: str = "page"  # or "token" and its prefix
    limited_to: int | None = None  # the only tenant of a token
    expires_at: datetime | None = None  # of a token
    quota_edits: int = 0  # the number of quota edits at the time of this query
    job_buckets: frozenset[int] = frozenset()  # tenants, of those that the user reaches, that limit submits of jobs
    default_minutes: dict[int, int] = field(default_factory=dict)  # of these tenants: quota.default_runtime_minutes

    @property
    def token_prefix(self) -> str | None:
        """Return the prefix of the caller's token; None on pages."""
        word, _, prefix = self.via.partition(" ")
        return prefix if word == "token" else None

    @property
    def can_administer(self) -> bool:
        """Return whether the caller can act in every tenant. Without the scope `admin`, an admin's token is a viewer of
        every tenant, and has the memberships of its user."""
        return self.is_admin and Scope.ADMIN in self.scopes

    def sees(self, tenant_id: int) -> bool:
        return self.is_admin or tenant_id in self.roles

    def has(self, role: Role, tenant_id: int) -> bool:
        current = self.roles.get(tenant_id, Role.VIEWER if self.is_admin else None)
        return self.can_administer or (current is not None and _RANK[current] >= _RANK[role])

    def visible_tenants(self) -> list[int] | None:
        """Return the ids of the tenants whose jobs are visible; None: all."""
        return None if self.is_admin else sorted(self.roles)

    def role_for(self, user_id: int) -> Role:
        """Return the role that actions on this user's jobs need: member for the caller's own, else owner."""
        return Role.MEMBER if user_id == self.user_id else Role.OWNER

    def may_act_for(self, user_id: int, tenant_id: int) -> bool:
        """Return whether the caller may act on what this user has in the tenant."""
        return self.has(self.role_for(user_id), tenant_id)

    def require(self, role: Role, tenant_id: int, subject: str) -> None:
        """Raise a 404 if the caller cannot see the tenant, a 403 if the role is missing."""
        if not self.sees(tenant_id):
            raise not_found(subject)
        if not self.has(role, tenant_id):
            raise Problem(
                403,
                "not_permitted",
                f"this needs the role {role} in the tenant",
                next_step=_WITH_SCOPE_ADMIN if self.is_admin else "ask an owner of the tenant",
            )

    def require_scope(self, scope: Scope) -> None:
        """Raise a 403 unless the token has this scope."""
        if scope not in self.scopes:
            step = "create a token with it"
            raise Problem(403, "scope_missing", f"this token lacks the scope '{scope}'", next_step=step)

    def require_admin(self) -> None:
        if not self.can_administer:
            raise Problem(403, "not_permitted", "only an admin may do this", next_step=_WITH_SCOPE_ADMIN)


_QUOTA_EDITS = "SELECT coalesce(sum(version), 0) AS n FROM tenants_quota"
# Read with the identity, so that submits without a bucket need no further statement, and a new bucket counts at once.
_JOB_BUCKETS = f"""
    SELECT coalesce(array_agg(DISTINCT b.tenant_id), ARRAY[]::bigint[]) AS tenants FROM tenants_tokenbucket b
     WHERE b.limits = '{BucketUse.JOBS}' AND ({{is_admin}} OR EXISTS (
           SELECT 1 FROM tenants_membership v WHERE v.tenant_id = b.tenant_id AND v.user_id = {{user}}))
"""
_DEFAULT_MINUTES = """
    SELECT coalesce(json_object_agg(q.tenant_id, q.default_runtime_minutes), '{{}}') AS minutes FROM tenants_quota q
     WHERE q.default_runtime_minutes IS NOT NULL AND ({is_admin} OR EXISTS (
           SELECT 1 FROM tenants_membership w WHERE w.tenant_id = q.tenant_id AND w.user_id = {user}))
"""
_BY_TOKEN = f"""
    SELECT t.prefix, t.id, t.secret_hash, t.scopes, t.tenant_id, t.expires_at, t.user_id, u.username, u.is_superuser,
           ({_QUOTA_EDITS}) AS quota_edits,
           ({_JOB_BUCKETS.format(is_admin="u.is_superuser", user="u.id")}) AS job_buckets,
           ({_DEFAULT_MINUTES.format(is_admin="u.is_superuser", user="u.id")}) AS default_minutes,
           t.last_used_at IS NULL OR t.last_used_at < now() - interval '1 minute' AS is_stale,
           (SELECT coalesce(json_agg(json_build_array(m.tenant_id, m.role, n.name, n.archived_at IS NOT NULL)), '[]')
              FROM tenants_membership m JOIN tenants_tenant n ON n.id = m.tenant_id
             WHERE m.user_id = t.user_id AND (t.tenant_id IS NULL OR m.tenant_id = t.tenant_id)) AS memberships
      FROM tenants_apitoken t JOIN auth_user u ON u.id = t.user_id
     WHERE t.prefix = ANY(%s::text[]) AND u.is_active AND t.revoked_at IS NULL
       AND (t.expires_at IS NULL OR t.expires_at > now())
"""


_TENANT = "SELECT id, name, archived_at IS NOT NULL AS is_archived FROM tenants_tenant WHERE id = %s"


def identity_of_token(header: str) -> Identity | None:
    """Return the identity of an Authorization header, or None."""
    prefix, secret = credentials.bearer(header)
    row = _token_row(prefix) if prefix and "\x00" not in prefix else None
    if row is None or not credentials.proves(secret, row["secret_hash"]):
        return None
    if row["is_stale"]:
        execute("UPDATE tenants_apitoken SET last_used_at = now() WHERE id = %s", [row["id"]])
    # A token limited to one tenant is never an admin's token.
    is_admin = row["is_superuser"] and row["tenant_id"] is None
    memberships = row["memberships"]
    if row["is_superuser"] and row["tenant_id"] is not None:
        memberships = [[r["id"], Role.OWNER, r["name"], r["is_archived"]] for r in query(_TENANT, [row["tenant_id"]])]
    scopes = frozenset(row["scopes"])
    via, more = f"token {prefix}", (row["tenant_id"], row["expires_at"], int(row["quota_edits"]))
    submits = (frozenset(row["job_buckets"]), _by_tenant(row["default_minutes"]))
    return Identity(row["user_id"], row["username"], is_admin, scopes, *_roles(memberships), via, *more, *submits)


def _token_rows(prefixes: Sequence[str]) -> list[dict[str, Any] | None]:
    rows = {row["prefix"]: row for row in prepared(_BY_TOKEN, [list(set(prefixes))])}
    return [rows.get(prefix) for prefix in prefixes]


_token_row = Grouped(_token_rows)


def identity_of_user(user: AbstractBaseUser) -> Identity:
    """Return the identity of a user on the pages: all scopes, all memberships."""
    assert isinstance(user, User)
    rows = query(
        f"""SELECT m.tenant_id, m.role, n.name, n.archived_at IS NOT NULL AS is_archived, e.n AS quota_edits,
                   b.tenants AS job_buckets, d.minutes AS default_minutes
              FROM ({_QUOTA_EDITS}) e
              CROSS JOIN ({_JOB_BUCKETS.format(is_admin="%(is_admin)s", user="%(user)s")}) b
              CROSS JOIN ({_DEFAULT_MINUTES.format(is_admin="%(is_admin)s", user="%(user)s")}) d
              LEFT JOIN tenants_membership m ON m.user_id = %(user)s
              LEFT JOIN tenants_tenant n ON n.id = m.tenant_id""",
        {"user": user.pk, "is_admin": user.is_superuser},
    )
    roles = _roles([[r["tenant_id"], r["role"], r["name"], r["is_archived"]] for r in rows if r["tenant_id"]])
    return Identity(
        user.pk,
        user.username,
        user.is_superuser,
        ALL_SCOPES,
        *roles,
        quota_edits=int(rows[0]["quota_edits"]),
        job_buckets=frozenset(rows[0]["job_buckets"]),
        default_minutes=_by_tenant(rows[0]["default_minutes"]),
    )


def identity_of_server() -> Identity:
    """Return the identity of the server itself, which acts in every tenant and is no user."""
    return Identity(0, "system", True, ALL_SCOPES, via="command")


def _roles(memberships: list[list[Any]]) -> tuple[dict[int, Role], dict[int, str], frozenset[int]]:
    """Return roles and names by tenant, and which tenants are archived."""
    archived = frozenset(m[0] for m in memberships if m[3])
    return {m[0]: Role(m[1]) for m in memberships}, {m[0]: m[2] for m in memberships}, archived


def _by_tenant(minutes: dict[str, int]) -> dict[int, int]:
    """Return a JSON object of values by tenant id with numbers as keys."""
    return {int(tenant_id): value for tenant_id, value in minutes.items()}


class _Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a write without fields: empty, or {}."""


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer <prefix>.<secret>`; or a call inside this process, whose `caller` is known already."""

    def authenticate(self, request: Request) -> tuple[Any, Identity] | None:
        caller: Identity | None = getattr(request._request, "caller", None)
        if caller is not None:
            return request._request.user, caller
        header = request.META.get("HTTP_AUTHORIZATION", "")
        if not header:
            return None
        identity = identity_of_token(header)
        if identity is None:
            rate_limits.count_bad_token(request._request)
            raise AuthenticationFailed("this token is unknown, expired or revoked")
        rate_limits.count(request._request, identity.via)
        return User(id=identity.user_id, username=identity.username, is_superuser=identity.is_admin), identity

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class PageSession(SessionAuthentication):
    """Authentication of the page's own calls: session cookie and CSRF token."""

    def authenticate(self, request: Request) -> tuple[Any, Identity] | None:
        authenticated = super().authenticate(request)
        if authenticated is None:
            return None
        rate_limits.count_on_pages(request._request, authenticated[0].pk)
        return authenticated[0], identity_of_user(authenticated[0])


class AnyCaller(BasePermission):
    """Permission without authentication. Reject undocumented parameters, and a body that is not read, before anything
    is done: a request for a dry run, or for a part, must never be executed, or return everything."""

    def has_permission(self, request: Request, view: Any) -> bool:
        handler: Any = getattr(view, str(request.method).lower(), None)
        if hasattr(handler, "query_parameters"):
            check_query(request, handler.query_parameters)
            if request.method not in SAFE_METHODS and not handler.takes_body:
                read_body(request, _Nothing)
        return True


class ScopeForMethod(AnyCaller):
    """Permission by scope: `read` for reads, `write` for other methods. Each endpoint checks roles itself."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not isinstance(request.auth, Identity):
            return False
        request.auth.require_scope(Scope.READ if request.method in SAFE_METHODS else Scope.WRITE)
        log.act_as(request.auth.username, request.auth.via)
        return super().has_permission(request, view)


def identity(request: Request | HttpRequest) -> Identity:
    """Return the identity of an authenticated request."""
    auth = getattr(request, "auth", None)
    if isinstance(auth, Identity):
        return auth
    user = request.user
    assert isinstance(user, AbstractBaseUser)
    return identity_of_user(user)
