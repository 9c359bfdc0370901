"""Rename a tenant: its id stays, and with it jobs, ledger, quota and tokens. The old name is free afterwards."""

import pghistory
from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from gpusched import oidc
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.lib.db.sql import violates
from tenants.models import Tenant
from tenants.tenancy import tenants
from tenants.tenancy.names import GROUP


def rename(tenant: Tenant, name: str, *, actor: str) -> Tenant:
    """Rename a tenant. 400 for a bad name, 409 for one in use, or while a setting has the old name."""
    try:
        with transaction.atomic(), pghistory.context(actor=actor, via="rename_tenant"):
            tenant = Tenant.objects.select_for_update().get(pk=tenant.pk)
            old = tenant.name
            if name == old:
                return tenant
            _require_not_in_settings(old)
            tenant.name = name
            tenants.check(tenant)
            tenant.save(update_fields=["name"])
            _rename_accounts(tenant, old)
            log.record("tenant.rename", f"tenant {name}", {"name": old}, {"name": name})
            tenants.announce_quota_edit(tenant)
    except IntegrityError as error:
        if violates(error, "tenants_tenant_name_key"):
            raise _name_taken(f"there is already a tenant '{name}'") from error
        if violates(error, "auth_user_username_key"):
            raise _name_taken(f"a service account would end in '@{name}', and there is already such a user") from error
        raise
    return tenant


def _require_not_in_settings(name: str) -> None:
    """Raise a 409: the setting would no longer match, so that users who leave a group would stay members."""
    if name in oidc.parse_groups(settings.ENV.oidc_groups).tenants:
        raise Problem(
            409,
            "named_in_settings",
            f"GPUSCHED_OIDC_GROUPS names tenant {name}",
            next_step="set the new name there, restart the server, and then rename the tenant",
        )


def _rename_accounts(tenant: Tenant, old: str) -> None:
    """Rename service accounts, `program@tenant`: another tenant with the old name must not get them."""
    programs = User.objects.filter(groups__name=GROUP, username__endswith=f"@{old}")
    for account in User.objects.select_for_update().filter(pk__in=programs.values("pk")).order_by("pk"):
        previous = account.username
        account.username = f"{previous.removesuffix(f'@{old}')}@{tenant.name}"
        if User.objects.filter(username=account.username).exists():
            raise _name_taken(f"a service account would become '{account.username}', and there is already such a user")
        account.save(update_fields=["username"])
        log.record("user.rename", f"user {account.username}", {"username": previous}, {"username": account.username})


def _name_taken(detail: str) -> Problem:
    return Problem(409, "name_taken", detail, next_step="choose another name")
