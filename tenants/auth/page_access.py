"""Check access to pages: whether sessions are valid, and which tenants their users see."""

from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib.auth.models import User
from django.http import HttpRequest

from gpusched.lib.db.sql import columns, execute, prepared
from tenants.auth.identity import Identity, identity_of_token, identity_of_user

# Ids of the tenants whose jobs are visible, in order; None: all.
Visible = tuple[int, ...] | None


@dataclass(frozen=True)
class Session:
    """A user's session on the pages. A changed password ends it, as it ends Django's own sessions."""

    user_id: int
    key: str
    password: str


Credential = str | Session  # an Authorization header, or the session of a page


@dataclass(frozen=True)
class Access:
    is_allowed: bool
    visible: Visible = ()


_ACCESS = """
    SELECT w.n, u.is_superuser,
           (SELECT coalesce(json_agg(m.tenant_id ORDER BY m.tenant_id), '[]') FROM tenants_membership m
             WHERE m.user_id = u.id) AS tenants
      FROM unnest(%s::int[], %s::bigint[], %s::text[], %s::text[]) AS w (n, user_id, key, password)
      JOIN auth_user u ON u.id = w.user_id AND u.is_active AND u.password = w.password
      JOIN django_session s ON s.session_key = w.key AND s.expire_date > now()
"""


def access_of(sessions: Sequence[Session]) -> list[Access]:
    """Return the present access of each session: refused when logged out, deactivated or with an old password."""
    rows = [(number, s.user_id, s.key, s.password) for number, s in enumerate(sessions)]
    granted = {
        row["n"]: Access(True, None if row["is_superuser"] else tuple(row["tenants"]))
        for row in prepared(_ACCESS, columns(rows, 4))
    }
    return [granted.get(number, Access(False)) for number in range(len(sessions))]


def credential_of(request: HttpRequest) -> Credential | None:
    """Return what a request was authenticated with; None: nothing."""
    if header := request.headers.get("Authorization", ""):
        return header
    user = request.user
    return Session(user.pk, request.session.session_key or "", user.password) if isinstance(user, User) else None


def identity_of(credential: Credential) -> Identity | None:
    """Return the caller as of now; None if the token or the session is no longer valid."""
    if isinstance(credential, str):
        return identity_of_token(credential)
    [access] = access_of([credential])
    if not access.is_allowed:
        return None
    return identity_of_user(User.objects.get(pk=credential.user_id))


def drop_expired_sessions() -> int:
    """Delete the sessions of logins that have expired, and of logins that were begun and not completed. Return how
    many. Django deletes a session only at its logout."""
    return execute("DELETE FROM django_session WHERE expire_date < now()")
