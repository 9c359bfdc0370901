"""Single sign-on: at each login decide whether a user may enter, as which account, and with which roles."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import IntegrityError, transaction

from gpusched import oidc
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from tenants.models import Membership, Tenant
from tenants.tenancy import tenants
from tenants.tenancy.names import GROUP

logger = logging.getLogger(__name__)
MAX_NAME = 150


@dataclass(frozen=True)
class ExternalUser:
    """A user as the identity provider describes them. `email` only if it is verified. `groups` None: the provider has
    more of them than fit into a token, and names none."""

    name: str
    email: str
    groups: frozenset[str] | None


def readable(claims: Mapping[str, Any]) -> dict[str, Any]:
    """Return the claims that are read here, without what cannot be stored. A provider may send a number as the name, or
    half a character in a nickname: allauth and PostgreSQL raise errors for them."""
    env = settings.ENV
    texts = {name: claims.get(name) for name in ("iss", "sub", "email", env.oidc_username_claim)}
    claimed = claims.get(env.oidc_groups_claim)
    groups = [claimed] if isinstance(claimed, str) else claimed if isinstance(claimed, list) else []
    is_omitted = claimed is None and _omits_groups(claims)
    return {
        **{name: text for name, text in texts.items() if _is_storable(text)},
        "email_verified": claims.get("email_verified") is True,
        env.oidc_groups_claim: None if is_omitted else [group for group in groups if _is_storable(group)],
    }


def _omits_groups(claims: Mapping[str, Any]) -> bool:
    """Return whether the token refers to the groups instead of naming them, as Entra ID does from 200 groups on.
    Source: OpenID Connect Core 1.0, 5.6.2, and for `hasgroups` the reference of Entra ID's tokens."""
    elsewhere = claims.get("_claim_names")
    return claims.get("hasgroups") is True or (
        isinstance(elsewhere, dict) and settings.ENV.oidc_groups_claim in elsewhere
    )


def claims_of(claims: Mapping[str, Any]) -> ExternalUser:
    """Read the readable claims of an ID token. 403 without a valid name."""
    env = settings.ENV
    name = claims.get(env.oidc_username_claim)
    name = User.normalize_username(name.strip()) if isinstance(name, str) else ""  # as Django stores it
    if not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise _refused(f"the login has no valid name in the claim {env.oidc_username_claim}", "ask an admin")
    email = claims.get("email", "") if claims["email_verified"] else ""
    groups = claims[env.oidc_groups_claim]
    return ExternalUser(name, email, None if groups is None else frozenset(groups))


def _is_storable(value: object) -> bool:
    """Return whether this is a text that PostgreSQL takes, without NUL and without half a surrogate pair."""
    return isinstance(value, str) and not any(char == "\x00" or "\ud800" <= char <= "\udfff" for char in value)


def sign_in(person: ExternalUser, existing: User | None) -> User:
    """Return the account, with the roles of the user's groups. `existing`: the account of earlier logins. 403 without
    access."""
    rules = oidc.parse_groups(settings.ENV.oidc_groups)
    if person.groups is None and rules.grants:  # unknown groups change no role
        raise _refused(
            "you have more groups than fit into the login, so that none is known",
            "ask an admin to let the identity provider send only the groups that have a role here",
        )
    groups = person.groups or frozenset()
    problem = _refusal_of(person, groups, rules)
    if problem and not existing:
        raise problem
    with transaction.atomic():
        log.act_as(existing.username if existing else person.name, "oidc")
        user = existing or _find_or_create_user(person)
        if not user.is_active:
            raise _refused(f"the account {user.username} is disabled", "ask an admin")
        groups = frozenset() if problem else groups
        if person.email and user.email != person.email[:254]:
            User.objects.filter(pk=user.pk).update(email=person.email[:254])
        _set_admin(user, rules, is_admin=rules.is_admin(groups))
        _set_roles(user, rules, rules.roles(groups))
    if problem:
        raise problem  # after their roles are removed, also for their tokens
    return user


def _refusal_of(person: ExternalUser, groups: frozenset[str], rules: oidc.GroupMapping) -> Problem | None:
    domains = oidc.describe(settings.ENV.oidc_allowed_domains)
    if domains and person.email.rpartition("@")[2].lower() not in {domain.lower() for domain in domains}:
        return _refused("your login has no verified e-mail address of an allowed domain", "ask an admin")
    if rules.grants and not rules.roles(groups) and not rules.is_admin(groups):
        return _refused("none of your groups has a role here", "ask an admin which group you need")
    return None


def _find_or_create_user(person: ExternalUser) -> User:
    """Return the account of that name, or a new one. It must have no password and no bound login: a user who can choose
    a name at the provider must get neither the local admin's account nor that of another user of the provider."""
    accounts = User.objects.select_for_update().filter(username=person.name)
    user = accounts.first()
    if user is None:
        if not settings.ENV.oidc_create_users:
            raise _refused(f"there is no account {person.name} here", "ask an admin to create it")
        try:
            with transaction.atomic():
                user = User.objects.create_user(person.name, person.email[:254])
                log.record("user.create", f"user {person.name}", None, {"email": person.email})
            return user
        except IntegrityError:  # created meanwhile
            user = accounts.get()
    if not _is_free(user):
        raise _refused(
            f"there is an account {person.name} here that is not bound to this login",
            "ask an admin; you get an account without a password and without earlier logins at your next login",
        )
    return user


def _is_free(user: User) -> bool:
    from allauth.socialaccount.models import SocialAccount  # not an installed app if single sign-on is off

    is_local = user.has_usable_password() or user.is_superuser or user.groups.filter(name=GROUP).exists()
    return user.is_active and not is_local and not SocialAccount.objects.filter(user=user).exists()


def _set_admin(user: User, rules: oidc.GroupMapping, *, is_admin: bool) -> None:
    if rules.names_admins and user.is_superuser != is_admin:
        User.objects.filter(pk=user.pk).update(is_superuser=is_admin, is_staff=is_admin)
        log.record("user.change", f"user {user.username}", {"is_admin": user.is_superuser}, {"is_admin": is_admin})
        user.is_superuser = user.is_staff = is_admin


def _set_roles(user: User, rules: oidc.GroupMapping, roles: Mapping[str, str]) -> None:
    """Set the roles in the tenants that the rules name. Memberships of other tenants are managed by hand."""
    memberships = {m.tenant.name: m for m in Membership.objects.filter(user=user).select_related("tenant")}
    for tenant in Tenant.objects.filter(name__in=rules.tenants):
        role, membership = roles.get(tenant.name), memberships.get(tenant.name)
        if role is None and membership is not None:
            membership.delete()
            previous = {"role": str(membership.role)}
            log.record("member.remove", f"{user.username} in {tenant.name}", previous, None)
        elif role is not None and (membership is None or membership.role != role):
            tenants.set_member(tenant, user, role)
    if missing := set(roles) - set(Tenant.objects.filter(name__in=roles).values_list("name", flat=True)):
        logger.warning("GPUSCHED_OIDC_GROUPS names tenants that do not exist: %s", ", ".join(sorted(missing)))


def _refused(detail: str, step: str) -> Problem:
    return Problem(403, "not_admitted", detail, next_step=step)
