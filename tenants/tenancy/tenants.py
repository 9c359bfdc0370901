"""Create and change tenants, quotas and memberships, each in one transaction."""

from collections.abc import Mapping
from typing import Any

import pghistory
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from gpusched.lib.api.problems import Problem, invalid
from gpusched.lib.audit import log
from gpusched.lib.bus import events, wake
from gpusched.lib.db.sql import violates
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from tenants.models import Membership, Quota, Tenant, UsageBalance

# The effect of an edit that changes nothing for jobs.
NO_EFFECT = "nothing that runs or waits is affected now"


def create_tenant(fields: Mapping[str, Any], *, actor: str, quota: Mapping[str, Any] | None = None) -> Tenant:
    """Create a tenant with its quota (by default without limits). 400 for bad fields, 409 for a name in use."""
    tenant = Tenant(**fields)
    check(tenant)
    try:
        with transaction.atomic(), pghistory.context(actor=actor, via="create_tenant"):
            tenant.save(force_insert=True)
            limits = Quota(tenant=tenant, **(quota or {}))
            check(limits)
            limits.save(force_insert=True)
            UsageBalance.objects.create(tenant=tenant, as_of=timezone.now())
            log.record("tenant.create", f"tenant {tenant.name}", None, {**fields, "quota": _limits(limits)})
            events.changed("tenants", [tenant.pk])
    except IntegrityError as error:
        if not violates(error, "tenants_tenant_name_key"):
            raise
        raise Problem(
            409, "name_taken", f"there is already a tenant '{tenant.name}'", next_step="choose another name"
        ) from error
    return tenant


def change_tenant(tenant: Tenant, changes: Mapping[str, Any], *, actor: str) -> Tenant:
    """Change fields of a tenant, except for its name (tenants/tenancy/rename.py)."""
    previous = {name: getattr(tenant, name) for name in changes}
    for name, value in changes.items():
        setattr(tenant, name, value)
    check(tenant)
    with transaction.atomic(), pghistory.context(actor=actor, via="change_tenant"):
        tenant.save(update_fields=list(changes))
        log.record("tenant.change", f"tenant {tenant.name}", previous, changes)
        _announce(tenant)
    return tenant


def set_archived(tenant: Tenant, *, is_archived: bool, actor: str) -> None:
    """Archive a tenant, or restore it with its quota and guarantee. Call it in the transaction of the consequences."""
    previous = rfc3339(tenant.archived_at)
    tenant.archived_at = timezone.now() if is_archived else None
    with transaction.atomic(), pghistory.context(actor=actor, via="set_archived"):
        tenant.save(update_fields=["archived_at"])
        action = "tenant.archive" if is_archived else "tenant.unarchive"
        after = {"archived_at": rfc3339(tenant.archived_at)}
        log.record(action, f"tenant {tenant.name}", {"archived_at": previous}, after)
        _announce(tenant)


def change_quota(
    tenant_id: int, limits: Mapping[str, Any], *, actor: str, expected_version: int | None = None
) -> Quota:
    """Replace limits. 412 if the quota is not at `expected_version`.

    Running jobs continue: a tenant above a lowered limit starts no new jobs until it is below. An edit without a change
    writes nothing."""
    with transaction.atomic(), pghistory.context(actor=actor, via="change_quota"):
        quota, differs = checked_quota(tenant_id, limits, expected_version=expected_version)
        if differs:
            previous = _limits(Quota.objects.get(pk=quota.pk))
            quota.version += 1
            quota.save()
            log.record("quota.change", f"quota {quota.tenant.name}", previous, _limits(quota))
            _announce(quota.tenant)
    return quota


def checked_quota(
    tenant_id: int, limits: Mapping[str, Any], *, expected_version: int | None = None
) -> tuple[Quota, bool]:
    """Return the unsaved quota after an edit, and whether it differs. Raise the errors of `change_quota`."""
    with transaction.atomic():
        quota = Quota.objects.select_for_update().select_related("tenant").get(tenant_id=tenant_id)
        if expected_version is not None and quota.version != expected_version:
            raise Problem(
                412,
                "version_conflict",
                f"the quota was changed meanwhile (it is at version {quota.version}, not {expected_version})",
                next_step="read it again and repeat the edit",
            )
        differs = any(getattr(quota, name) != value for name, value in limits.items())
        for name, value in limits.items():
            setattr(quota, name, value)
        check(quota)
    return quota, differs


def announce_quota_edit(tenant: Tenant) -> None:
    """Announce an edit by code that saves the row itself (the admin), and request a cycle."""
    _announce(tenant)


def set_member(tenant: Tenant, user: User, role: str) -> Membership:
    """Add a member to a tenant, or change the role."""
    with transaction.atomic():
        old = Membership.objects.select_for_update().filter(tenant=tenant, user=user).first()
        membership, _ = Membership.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role})
        if old is None or old.role != role:
            previous = {"role": str(old.role)} if old else None
            log.record("member.set", f"{user.username} in {tenant.name}", previous, {"role": str(role)})
    return membership


def _limits(quota: Quota) -> dict[str, Any]:
    """Return the editable fields."""
    names = (field.name for field in Quota._meta.concrete_fields if field.name not in ("id", "tenant"))
    return {name: getattr(quota, name) for name in names}


def _announce(tenant: Tenant) -> None:
    events.changed("tenants", [tenant.pk])
    wake.request_cycle()


def check(instance: Tenant | Quota) -> None:
    """Raise a 400 that names every bad field."""
    texts = {field.name: getattr(instance, field.attname) for field in instance._meta.concrete_fields}
    nul = [name for name, value in texts.items() if isinstance(value, str) and "\x00" in value]
    if nul:  # PostgreSQL cannot store them
        raise invalid([FieldError(name, "invalid_character", "must not contain a NUL character") for name in nul])
    try:
        instance.full_clean(validate_unique=False)
    except ValidationError as error:
        errors = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
        raise invalid(
            [FieldError(f.replace("__all__", ""), "invalid", m) for f, messages in errors.items() for m in messages]
        ) from error
