"""Create and revoke API tokens."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.lib.auth import credentials
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.states import Scope
from tenants.models import ApiToken


def create_token(
    user_id: int,
    name: str,
    scopes: list[str],
    *,
    tenant_id: int | None = None,
    expires_at: datetime | None = None,
    made_by: str | None = None,
) -> tuple[ApiToken, str]:
    """A token and its text, which is shown this once. `made_by`: the prefix of the token that asks for it."""
    made = credentials.generate("u")
    with transaction.atomic():
        token = ApiToken.objects.create(
            user_id=user_id,
            tenant_id=tenant_id,
            made_by=None if made_by is None else _good(made_by),
            name=name,
            prefix=made.prefix,
            secret_hash=made.secret_hash,
            scopes=sorted(set(scopes), key=list(Scope).index),
            expires_at=expires_at,
        )
        facts = {"name": name, "user_id": user_id, "tenant_id": tenant_id, "scopes": token.scopes}
        log.record("token.create", f"token {made.prefix}", None, {**facts, "expires_at": rfc3339(expires_at)})
    return token, made.text


def revoke_token(token: ApiToken) -> list[int]:
    """Revokes it and all that were made with it, and with those; gives the ids of these others. Harmless when
    repeated; the first time counts."""
    now = timezone.now()
    others: list[int] = []
    with transaction.atomic():
        if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now):
            _note_revoked(token.prefix, now)
        # Again until none is left: one that was being made meanwhile is seen by the next look.
        while found := query(_REVOKE_MADE, [token.pk, now]):
            for row in found:
                _note_revoked(row["prefix"], now)
            others += [row["id"] for row in found]
    return sorted(others)


_REVOKE_MADE = """
    WITH RECURSIVE made AS (
        SELECT id FROM tenants_apitoken WHERE made_by_id = %s
        UNION SELECT t.id FROM tenants_apitoken t JOIN made m ON t.made_by_id = m.id)
    UPDATE tenants_apitoken SET revoked_at = %s WHERE id IN (SELECT id FROM made) AND revoked_at IS NULL
    RETURNING id, prefix
"""


def _note_revoked(prefix: str, at: datetime) -> None:
    log.record("token.revoke", f"token {prefix}", {"revoked_at": None}, {"revoked_at": rfc3339(at)})


def _good(prefix: str) -> ApiToken:
    """The token, which nobody revokes until this transaction is over; 401 if somebody just has."""
    token = ApiToken.objects.select_for_update().filter(prefix=prefix, revoked_at=None).first()
    if token is None:
        raise Problem(
            401, "not_authenticated", "this token is unknown, expired or revoked", next_step="use another token"
        )
    return token


def expiry(days: float | None) -> datetime | None:
    return None if days is None else timezone.now() + timedelta(days=days)
