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
    """Create a token. Return it and its text, which is not stored. `made_by`: the prefix of the caller's token."""
    credential = credentials.generate("u")
    with transaction.atomic():
        token = ApiToken.objects.create(
            user_id=user_id,
            tenant_id=tenant_id,
            made_by=None if made_by is None else _locked_token(made_by),
            name=name,
            prefix=credential.prefix,
            secret_hash=credential.secret_hash,
            scopes=sorted(set(scopes), key=list(Scope).index),
            expires_at=expires_at,
        )
        facts = {"name": name, "user_id": user_id, "tenant_id": tenant_id, "scopes": token.scopes}
        log.record("token.create", f"token {credential.prefix}", None, {**facts, "expires_at": rfc3339(expires_at)})
    return token, credential.text


def revoke_token(token: ApiToken) -> list[int]:
    """Revoke a token and all tokens created with it, directly or indirectly. Return the ids of the others. Revoking it
    again changes nothing."""
    now = timezone.now()
    also_revoked: list[int] = []
    with transaction.atomic():
        if ApiToken.objects.filter(pk=token.pk, revoked_at=None).update(revoked_at=now):
            _note_revoked(token.prefix, now)
        # Repeat until none is left: the next query sees a token that was being created meanwhile.
        while rows := query(_REVOKE_MADE, [token.pk, now]):
            for row in rows:
                _note_revoked(row["prefix"], now)
            also_revoked += [row["id"] for row in rows]
    return sorted(also_revoked)


_REVOKE_MADE = """
    WITH RECURSIVE made AS (
        SELECT id FROM tenants_apitoken WHERE made_by_id = %s
        UNION SELECT t.id FROM tenants_apitoken t JOIN made m ON t.made_by_id = m.id)
    UPDATE tenants_apitoken SET revoked_at = %s WHERE id IN (SELECT id FROM made) AND revoked_at IS NULL
    RETURNING id, prefix
"""


def _note_revoked(prefix: str, at: datetime) -> None:
    log.record("token.revoke", f"token {prefix}", {"revoked_at": None}, {"revoked_at": rfc3339(at)})


def _locked_token(prefix: str) -> ApiToken:
    """Return the token, locked against revocation until the transaction ends. 401 if it was revoked."""
    token = ApiToken.objects.select_for_update().filter(prefix=prefix, revoked_at=None).first()
    if token is None:
        raise Problem(
            401, "not_authenticated", "this token is unknown, expired or revoked", next_step="use another token"
        )
    return token


def expires_after(days: float | None) -> datetime | None:
    return None if days is None else timezone.now() + timedelta(days=days)
