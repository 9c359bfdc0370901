"""Tokens of programs: each belongs to an account of its tenant that has no password and is nobody's, so that it
outlives whoever made it."""

import re
from collections.abc import Collection

from django.contrib.auth.models import Group, User
from django.db import IntegrityError, transaction
from django.db.models import Q
from django.utils import timezone

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.db.sql import violates
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.states import Role, Scope
from tenants.auth import tokens
from tenants.models import ApiToken, Membership, Tenant
from tenants.tenancy import tenants
from tenants.tenancy.names import GROUP

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?")


def create(
    tenant: Tenant, name: str, role: Role | None, scopes: Collection[Scope], days: float | None
) -> tuple[ApiToken, str]:
    """A token, limited to the tenant, of the account `name@tenant`, which is made if it is new; and its text, shown
    this once. A second token of the same name is one to change over to. `role` None: the one that the account has, else
    member. 400 for a bad name, 409 for a person's, and for a role other than that of the account's tokens in use."""
    if not _NAME.fullmatch(name):
        raise invalid([FieldError("name", "invalid", "1 to 40 lower-case letters, digits and dashes")])
    username = f"{name}@{tenant.name}"
    try:
        with transaction.atomic():
            group, _ = Group.objects.get_or_create(name=GROUP)
            account = User.objects.select_for_update().filter(username=username).first()
            if account is None:
                account = User.objects.create_user(username)
                account.groups.add(group)
            elif not account.groups.filter(pk=group.pk).exists():
                raise _taken(username)
            tenants.set_member(tenant, account, _role(tenant, account, role))
            return tokens.create_token(
                account.pk, name, list(scopes), tenant_id=tenant.pk, expires_at=tokens.expiry(days)
            )
    except IntegrityError as error:
        if not violates(error, "auth_user_username_key"):
            raise
        raise _taken(username) from error


def listed(tenant: Tenant) -> list[ApiToken]:
    """Those of a tenant, the newest first, also those that are over."""
    found = ApiToken.objects.filter(tenant=tenant, user__groups__name=GROUP)
    return list(found.select_related("tenant", "user"))


def revoke(tenant: Tenant, token_id: int) -> tuple[ApiToken, list[int]]:
    """It, and the ids of those revoked with it as it made them. Harmless when repeated. 404 for a token that is
    none of the tenant's programs."""
    token = ApiToken.objects.filter(pk=token_id, tenant=tenant, user__groups__name=GROUP).first()
    if token is None:
        raise not_found(f"service token {token_id}")
    others = tokens.revoke_token(token)
    return ApiToken.objects.select_related("tenant", "user").get(pk=token_id), others


def _role(tenant: Tenant, account: User, wanted: Role | None) -> Role:
    """All tokens of an account have its role, so a new one must not change what those in use may do."""
    held = Membership.objects.filter(tenant=tenant, user=account).first()
    if held is None or wanted == held.role:
        return wanted or Role.MEMBER
    in_use = ApiToken.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=timezone.now()), user=account, revoked_at=None
    )
    if wanted is None or not in_use.exists():
        return wanted or Role(held.role)
    raise Problem(
        409,
        "role_differs",
        f"'{account.username}' has tokens in use with the role {held.role}, which a token as {wanted} would change",
        next_step=f"leave role out to keep {held.role}, revoke its tokens first, or choose another name",
        errors=[FieldError("role", "not_permitted", f"is {held.role} for all tokens of this name")],
    )


def _taken(username: str) -> Problem:
    return Problem(409, "name_taken", f"there is already a person '{username}'", next_step="choose another name")
