"""Tokens of programs: each belongs to an account of its tenant that has no password and is nobody's, so that it
outlives whoever made it."""

import re
from collections.abc import Collection

from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction

from gpusched.lib.problems import Problem, invalid, not_found
from gpusched.protocol.jobs import FieldError
from gpusched.protocol.states import Role, Scope
from tenants import services
from tenants.models import ApiToken, Tenant

# Its members are such accounts: no person who happens to have the name is taken for one.
GROUP = "service accounts"
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def create(
    tenant: Tenant, name: str, role: Role, scopes: Collection[Scope], days: float | None
) -> tuple[ApiToken, str]:
    """A token, limited to the tenant, of the account `name@tenant`, which is made if it is new; and its text, shown
    this once. A second token of the same name is one to change over to. 400 for a bad name, 409 for a person's."""
    if not _NAME.fullmatch(name):
        raise invalid([FieldError("name", "invalid", "1 to 40 lower-case letters, digits and dashes")])
    username = f"{name}@{tenant.name}"
    try:
        with transaction.atomic():
            group, _ = Group.objects.get_or_create(name=GROUP)
            account = User.objects.filter(username=username).first()
            if account is None:
                account = User.objects.create_user(username)
                account.groups.add(group)
            elif not account.groups.filter(pk=group.pk).exists():
                raise _taken(username)
            services.set_member(tenant, account, role)
            return services.create_token(
                account.pk, name, list(scopes), tenant_id=tenant.pk, expires_at=services.expiry(days)
            )
    except IntegrityError as error:
        raise _taken(username) from error


def listed(tenant: Tenant) -> list[ApiToken]:
    """Those of a tenant, the newest first, also those that are over."""
    found = ApiToken.objects.filter(tenant=tenant, user__groups__name=GROUP)
    return list(found.select_related("tenant", "user"))


def revoke(tenant: Tenant, token_id: int) -> ApiToken:
    """Harmless when repeated. 404 for a token that is none of the tenant's programs."""
    token = ApiToken.objects.filter(pk=token_id, tenant=tenant, user__groups__name=GROUP).first()
    if token is None:
        raise not_found(f"service token {token_id}")
    services.revoke_token(token)
    return ApiToken.objects.select_related("tenant", "user").get(pk=token_id)


def _taken(username: str) -> Problem:
    return Problem(409, "name_taken", f"there is already a person '{username}'", next_step="choose another name")
