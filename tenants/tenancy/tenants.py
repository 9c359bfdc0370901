"""What can be done to tenants, quotas and tokens, each as one transaction."""

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
    """A tenant with its quota (no limits unless given). 400 for bad fields, 409 for a name that is taken."""
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
    """Changes fields of a tenant; tenants/tenancy/rename.py changes its name."""
    before = {name: getattr(tenant, name) for name in changes}
    for name, value in changes.items():
        setattr(tenant, name, value)
    check(tenant)
    with transaction.atomic(), pghistory.context(actor=actor, via="change_tenant"):
        tenant.save(update_fields=list(changes))
        log.record("tenant.change", f"tenant {tenant.name}", before, changes)
        _announce(tenant)
    return tenant


def set_archived(tenant: Tenant, *, is_archived: bool, actor: str) -> None:
    """Archive a tenant, or restore it with its quota and guarantee. In the transaction of what follows from it."""
    before = rfc3339(tenant.archived_at)
    tenant.archived_at = timezone.now() if is_archived else None
    with transaction.atomic(), pghistory.context(actor=actor, via="set_archived"):
        tenant.save(update_fields=["archived_at"])
        action = "tenant.archive" if is_archived else "tenant.unarchive"
        after = {"archived_at": rfc3339(tenant.archived_at)}
        log.record(action, f"tenant {tenant.name}", {"archived_at": before}, after)
        _announce(tenant)


def change_quota(
    tenant_id: int, limits: Mapping[str, Any], *, actor: str, expected_version: int | None = None
) -> Quota:
    """Replaces limits. With `expected_version`, 412 if somebody else changed the quota in the meantime.

    Nothing that runs is stopped: a tenant above a lowered limit starts nothing new until it is below. An edit that
    changes nothing writes nothing."""
    with transaction.atomic(), pghistory.context(actor=actor, via="change_quota"):
        quota, differs = checked_quota(tenant_id, limits, expected_version=expected_version)
        if differs:
            before = _limits(Quota.objects.get(pk=quota.pk))
            quota.version += 1
            quota.save()
            log.record("quota.change", f"quota {quota.tenant.name}", before, _limits(quota))
            _announce(quota.tenant)
    return quota


def checked_quota(
    tenant_id: int, limits: Mapping[str, Any], *, expected_version: int | None = None
) -> tuple[Quota, bool]:
    """The quota as it would be, not saved, and whether that is another; raises as `change_quota` does."""
    with transaction.atomic():
        quota = Quota.objects.select_for_update().select_related("tenant").get(tenant_id=tenant_id)
        if expected_version is not None and quota.version != expected_version:
            raise Problem(
                412,
                "version_conflict",
                f"the quota was changed meanwhile (it is at version {quota.version}, not {expected_version})",
                next_step="read it again and repeat the change",
            )
        differs = any(getattr(quota, name) != value for name, value in limits.items())
        for name, value in limits.items():
            setattr(quota, name, value)
        check(quota)
    return quota, differs


def announce_quota_edit(tenant: Tenant) -> None:
    """For editors that save the row themselves (the admin): the queue is looked at again."""
    _announce(tenant)


def set_member(tenant: Tenant, user: User, role: str) -> Membership:
    """Gives somebody a role in a tenant, or another one."""
    with transaction.atomic():
        old = Membership.objects.select_for_update().filter(tenant=tenant, user=user).first()
        membership, _ = Membership.objects.update_or_create(tenant=tenant, user=user, defaults={"role": role})
        if old is None or old.role != role:
            before = {"role": str(old.role)} if old else None
            log.record("member.set", f"{user.username} in {tenant.name}", before, {"role": str(role)})
    return membership


def _limits(quota: Quota) -> dict[str, Any]:
    """Its fields that people set."""
    names = (field.name for field in Quota._meta.concrete_fields if field.name not in ("id", "tenant"))
    return {name: getattr(quota, name) for name in names}


def _announce(tenant: Tenant) -> None:
    events.changed("tenants", [tenant.pk])
    wake.request_cycle()


def check(instance: Tenant | Quota) -> None:
    """Raise a 400 that names every bad field."""
    texts = {field.name: getattr(instance, field.attname) for field in instance._meta.concrete_fields}
    nul = [name for name, value in texts.items() if isinstance(value, str) and "\x00" in value]
    if nul:  # PostgreSQL keeps none
        raise invalid([FieldError(name, "invalid_character", "must not contain a NUL character") for name in nul])
    try:
        instance.full_clean(validate_unique=False)
    except ValidationError as error:
        found = error.message_dict if hasattr(error, "error_dict") else {"": error.messages}
        raise invalid(
            [FieldError(f.replace("__all__", ""), "invalid", m) for f, messages in found.items() for m in messages]
        ) from error
