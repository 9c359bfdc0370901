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
    """Give a tenant another name. 400 for a bad name, 409 for one that is taken, or while a setting has the old one."""
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
            raise _taken(f"there is already a tenant '{name}'") from error
        if violates(error, "auth_user_username_key"):
            raise _taken(f"a program's account would end in '@{name}', and there is already such a user") from error
        raise
    return tenant


def _require_not_in_settings(name: str) -> None:
    """Nobody's group would decide on its members any more, and who has left would stay one."""
    if name in oidc.parse_groups(settings.ENV.oidc_groups).tenants:
        raise Problem(
            409,
            "named_in_settings",
            f"GPUSCHED_OIDC_GROUPS names tenant {name}",
            next_step="write the new name there, restart the server, and rename then",
        )


def _rename_accounts(tenant: Tenant, old: str) -> None:
    """The account of a program is `program@tenant`: another tenant that takes the old name must not find it."""
    programs = User.objects.filter(groups__name=GROUP, username__endswith=f"@{old}")
    for account in User.objects.select_for_update().filter(pk__in=programs.values("pk")).order_by("pk"):
        before = account.username
        account.username = f"{before.removesuffix(f'@{old}')}@{tenant.name}"
        if User.objects.filter(username=account.username).exists():
            raise _taken(f"a program's account would become '{account.username}', and there is already such a user")
        account.save(update_fields=["username"])
        log.record("user.rename", f"user {account.username}", {"username": before}, {"username": account.username})


def _taken(detail: str) -> Problem:
    return Problem(409, "name_taken", detail, next_step="choose another name")
