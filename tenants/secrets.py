"""Secrets of tenants: stored sealed by name, and unsealed only for a node that runs a job which names them.

The seal is Fernet (AES-128-CBC with HMAC-SHA256) with a key derived from SECRET_KEY, so that a dump of the database
reveals nothing without it."""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pghistory
import psycopg
from cryptography.fernet import InvalidToken
from django.db import transaction
from django.utils import timezone

from gpusched.lib.api.problems import invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.auth.sealing import seal_for
from gpusched.lib.db.sql import query
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import SECRET_NAME, SECRET_NAME_RULE, FieldError
from tenants.models import Secret, Tenant

MAX_SECRETS, MAX_BYTES = 64, 65_536
_PURPOSE = b"gpusched: secrets of tenants, 1"


def set_secret(tenant: Tenant, name: str, value: str, *, actor: str) -> tuple[dict[str, Any], bool]:
    """Store a secret under a name, or replace its value. Return its representation and whether the name is new.

    400 for a bad name or value, and for more than MAX_SECRETS."""
    if errors := _problems(name, value):
        raise invalid(errors)
    sealed = seal_for(_PURPOSE).encrypt(value.encode()).decode()
    with transaction.atomic(), pghistory.context(actor=actor, via="set_secret"):
        # Serialize calls, so that two cannot both take the last place. Submits do not wait for this lock.
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        previous = {secret["name"]: secret for secret in list_secrets(tenant)}
        if name not in previous and len(previous) >= MAX_SECRETS:
            message = f"tenant {tenant.name} has {MAX_SECRETS} secrets, the maximum; delete one"
            raise invalid([FieldError("name", "too_many", message)])
        values = {"sealed": sealed, "set_by": actor, "set_at": timezone.now()}
        secret, is_new = Secret.objects.update_or_create(tenant=tenant, name=name, defaults=values)
        log.record("secret.set", _subject(name, tenant), previous.get(name), _represent(secret))
    return _represent(secret), is_new


def delete_secret(tenant: Tenant, name: str, *, actor: str) -> None:
    """Delete a secret. Attempts that already have their orders keep it; later ones fail and name it. 404 if absent."""
    with transaction.atomic(), pghistory.context(actor=actor, via="delete_secret"):
        secret = Secret.objects.filter(tenant=tenant, name=name).first() if "\x00" not in name else None
        if secret is None or not secret.delete()[0]:
            raise not_found(f"secret '{name[:100]}' of tenant {tenant.name}")
        log.record("secret.delete", _subject(name, tenant), _represent(secret), None)


def list_secrets(tenant: Tenant) -> list[dict[str, Any]]:
    """Return the secrets by name, with who set each and when; never a value."""
    return [_represent(secret) for secret in Secret.objects.filter(tenant=tenant).order_by("name").defer("sealed")]


def require_known(names: Collection[str], tenant_id: int, tenant: str) -> None:
    """Raise a 400 that lists the names for which the tenant has no secret."""
    if not names:
        return
    rows = query("SELECT name FROM tenants_secret WHERE tenant_id = %s AND name = ANY(%s)", [tenant_id, list(names)])
    if missing := sorted(set(names) - {row["name"] for row in rows}):
        raise invalid([FieldError("secrets", "unknown", f"{_absent(missing, tenant)}, or leave it out")])


def unseal(sealed: Mapping[str, str], names: Sequence[str], tenant: str) -> tuple[dict[str, str], str]:
    """Return the values of `names` and "", or no values and a sentence why the job cannot start."""
    if missing := sorted(set(names) - set(sealed)):
        return {}, f"{_absent(missing, tenant)}, and submit the job again"
    seal = seal_for(_PURPOSE)
    try:
        return {name: seal.decrypt(sealed[name].encode()).decode() for name in names}, ""
    except InvalidToken:
        return {}, "its secrets were sealed with another SECRET_KEY; set them again, and submit the job again"


def has_key(database: psycopg.Connection[Any]) -> bool:
    """Return whether this process has the key with which the latest secret of a database was sealed; True if there is
    none."""
    latest = database.execute("SELECT sealed FROM tenants_secret ORDER BY set_at DESC LIMIT 1").fetchone()
    try:
        return latest is None or bool(seal_for(_PURPOSE).decrypt(latest[0].encode()))
    except InvalidToken:
        return False


def _absent(names: Sequence[str], tenant: str) -> str:
    listing = ", ".join(f"'{name}'" for name in names)
    return (
        f"tenant {tenant} has no secret {listing}; an owner sets it: gpusched secret set {names[0]} --tenant {tenant}"
    )


def _problems(name: str, value: str) -> list[FieldError]:
    """Return the errors of a name and value. No message contains a value."""
    errors = []
    if not SECRET_NAME.match(name):
        errors.append(FieldError("name", "invalid_name", SECRET_NAME_RULE))
    if not value:
        errors.append(FieldError("value", "required", "must not be empty"))
    if len(value.encode()) > MAX_BYTES:
        errors.append(FieldError("value", "too_long", "at most 64 KiB"))
    # JSON encodes each as six characters: with 32 such secrets and a long script, orders would exceed an agent's limit.
    if any(unicodedata.category(character) == "Cc" and character not in "\t\n\r" for character in value):
        message = "must be text, without control characters other than tabs and line ends; encode binary data as base64"
        errors.append(FieldError("value", "invalid_character", message))
    return errors


def _subject(name: str, tenant: Tenant) -> str:
    return f"secret {name} of {tenant.name}"


def _represent(secret: Secret) -> dict[str, Any]:
    return {"name": secret.name, "set_by": secret.set_by, "set_at": rfc3339(secret.set_at)}
