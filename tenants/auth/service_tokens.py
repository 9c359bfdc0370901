"""Tokens of programs. Each belongs to a service account of its tenant, without a password, so that it outlives its
creator."""

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
    """Create a token, limited to the tenant, of the account `name@tenant`, and the account if it is new. Return it and
    its text, which is not stored. A second token of a name is for rotation. `role` None: the account's role, else
    member. 400 for a bad name, 409 for the name of a person, a disabled account, and a role other than that of the
    active tokens."""
    if not _NAME.fullmatch(name):
        raise invalid([FieldError("name", "invalid", "1 to 40 lower-case letters, digits and dashes")])
    try:
        with transaction.atomic():
            # A rename at the same time comes before, or finds the account: another tenant may get the old name.
            tenant = Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)
            username = f"{name}@{tenant.name}"
            group, _ = Group.objects.get_or_create(name=GROUP)
            account = User.objects.select_for_update().filter(username=username).first()
            if account is None:
                account = User.objects.create_user(username)
                account.groups.add(group)
            elif not account.groups.filter(pk=group.pk).exists():
                raise _name_taken(username)
            elif not account.is_active:
                detail, step = (
                    f"the account {username} is disabled",
                    "ask an admin to enable it, or choose another name",
                )
                raise Problem(409, "wrong_state", detail, next_step=step)
            tenants.set_member(tenant, account, _role(tenant, account, role))
            return tokens.create_token(
                account.pk, name, list(scopes), tenant_id=tenant.pk, expires_at=tokens.expires_after(days)
            )
    except IntegrityError as error:
        if not violates(error, "auth_user_username_key"):
            raise
        # Another first token of this account has created it meanwhile.
        return create(tenant, name, role, scopes, days)


def list_tokens(tenant: Tenant) -> list[ApiToken]:
    """Return the service tokens of a tenant, newest first, including expired and revoked ones."""
    tokens_of = ApiToken.objects.filter(tenant=tenant, user__groups__name=GROUP)
    return list(tokens_of.select_related("tenant", "user"))


def revoke(tenant: Tenant, token_id: int) -> tuple[ApiToken, list[int]]:
    """Revoke a token and those created with it. Return it and the ids of the others. Revoking it again changes nothing.
    404 for a token that is not a service token of the tenant."""
    token = ApiToken.objects.filter(pk=token_id, tenant=tenant, user__groups__name=GROUP).first()
    if token is None:
        raise not_found(f"service token {token_id}")
    also_revoked = tokens.revoke_token(token)
    return ApiToken.objects.select_related("tenant", "user").get(pk=token_id), also_revoked


def _role(tenant: Tenant, account: User, requested: Role | None) -> Role:
    """Return the role of the account. All its tokens share it, so a new token must not change it for active ones."""
    membership = Membership.objects.filter(tenant=tenant, user=account).first()
    if membership is None or requested == membership.role:
        return requested or Role.MEMBER
    in_use = ApiToken.objects.filter(
        Q(expires_at=None) | Q(expires_at__gt=timezone.now()), user=account, revoked_at=None
    )
    if requested is None or not in_use.exists():
        return requested or Role(membership.role)
    raise Problem(
        409,
        "role_differs",
        f"'{account.username}' has active tokens with the role {membership.role}, not {requested}",
        next_step=f"leave role out to keep {membership.role}, revoke its tokens first, or choose another name",
        errors=[FieldError("role", "not_permitted", f"is {membership.role} for all tokens of this name")],
    )


def _name_taken(username: str) -> Problem:
    return Problem(409, "name_taken", f"there is already a person '{username}'", next_step="choose another name")
