"""Secrets of tenants: kept sealed by name, and opened for nobody but the node that runs a job which names them.

The seal is Fernet (AES-128-CBC with HMAC-SHA256) with a key that follows from SECRET_KEY, so that a dump of the
database tells nothing without that."""

import unicodedata
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pghistory
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
    """Keeps a secret under a name, in place of the one before; gives how it is listed, and whether the name is new.

    400 for a bad name or value, and for more than MAX_SECRETS."""
    if found := _problems(name, value):
        raise invalid(found)
    sealed = seal_for(_PURPOSE).encrypt(value.encode()).decode()
    with transaction.atomic(), pghistory.context(actor=actor, via="set_secret"):
        # One after the other, so that two cannot both be the last that fits. Submits do not wait for this lock.
        Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
        before = {one["name"]: one for one in listed(tenant)}
        if name not in before and len(before) >= MAX_SECRETS:
            message = f"tenant {tenant.name} keeps {MAX_SECRETS} secrets, which is the most; delete one"
            raise invalid([FieldError("name", "too_many", message)])
        values = {"sealed": sealed, "set_by": actor, "set_at": timezone.now()}
        secret, is_new = Secret.objects.update_or_create(tenant=tenant, name=name, defaults=values)
        log.record("secret.set", _subject(name, tenant), before.get(name), _shown(secret))
    return _shown(secret), is_new


def delete(tenant: Tenant, name: str, *, actor: str) -> None:
    """404 if there is none. Attempts that have their orders keep it; those that come after fail and name it."""
    with transaction.atomic(), pghistory.context(actor=actor, via="delete_secret"):
        secret = Secret.objects.filter(tenant=tenant, name=name).first() if "\x00" not in name else None
        if secret is None or not secret.delete()[0]:
            raise not_found(f"secret '{name[:100]}' of tenant {tenant.name}")
        log.record("secret.delete", _subject(name, tenant), _shown(secret), None)


def listed(tenant: Tenant) -> list[dict[str, Any]]:
    """By name, with who set each and when; never a value."""
    return [_shown(secret) for secret in Secret.objects.filter(tenant=tenant).order_by("name").defer("sealed")]


def require_known(names: Collection[str], tenant_id: int, tenant: str) -> None:
    """400 that says which of the names the tenant has no secret of."""
    if not names:
        return
    rows = query("SELECT name FROM tenants_secret WHERE tenant_id = %s AND name = ANY(%s)", [tenant_id, list(names)])
    if missing := sorted(set(names) - {row["name"] for row in rows}):
        raise invalid([FieldError("secrets", "unknown", f"{_absent(missing, tenant)}, or leave it out")])


def unseal(sealed: Mapping[str, str], names: Sequence[str], tenant: str) -> tuple[dict[str, str], str]:
    """The values of `names` from what is kept of them, and ""; or none and the sentence why the job cannot start."""
    if missing := sorted(set(names) - set(sealed)):
        return {}, f"{_absent(missing, tenant)}, and submit the job again"
    seal = seal_for(_PURPOSE)
    try:
        return {name: seal.decrypt(sealed[name].encode()).decode() for name in names}, ""
    except InvalidToken:
        return {}, "its secrets were sealed with another SECRET_KEY; set them again, and submit the job again"


def _absent(names: Sequence[str], tenant: str) -> str:
    told = ", ".join(f"'{name}'" for name in names)
    return f"tenant {tenant} has no secret {told}; an owner sets it: gpusched secret set {names[0]} --tenant {tenant}"


def _problems(name: str, value: str) -> list[FieldError]:
    """No message tells a value."""
    found = []
    if not SECRET_NAME.match(name):
        found.append(FieldError("name", "invalid_name", SECRET_NAME_RULE))
    if not value:
        found.append(FieldError("value", "required", "must not be empty"))
    if len(value.encode()) > MAX_BYTES:
        found.append(FieldError("value", "too_long", "at most 64 KiB"))
    # JSON writes each of them as six characters: with 32 such secrets and a long script, orders would be longer than
    # what an agent takes.
    if any(unicodedata.category(character) == "Cc" and character not in "\t\n\r" for character in value):
        message = "must be text, without control characters but tabs and ends of lines; encode others as base64"
        found.append(FieldError("value", "invalid_character", message))
    return found


def _subject(name: str, tenant: Tenant) -> str:
    return f"secret {name} of {tenant.name}"


def _shown(secret: Secret) -> dict[str, Any]:
    return {"name": secret.name, "set_by": secret.set_by, "set_at": rfc3339(secret.set_at)}
