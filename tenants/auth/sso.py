"""Who may come in by the company's own login, as which user, and into which tenants: decided anew at each login."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from gpusched import oidc
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from tenants.models import Membership, Tenant
from tenants.tenancy import tenants
from tenants.tenancy.names import GROUP

logger = logging.getLogger(__name__)
MAX_NAME = 150


@dataclass(frozen=True)
class Person:
    """As the provider tells of somebody. `email` only if it says that it is theirs."""

    name: str
    email: str
    groups: frozenset[str]


def claims_of(claims: Mapping[str, Any]) -> Person:
    """Of the claims of an ID token. 403 for what cannot be a name."""
    env = settings.ENV
    name, told = claims.get(env.oidc_username_claim), claims.get(env.oidc_groups_claim)
    if not isinstance(name, str) or not 1 <= len(name.strip()) <= MAX_NAME or not name.isprintable():
        raise _refused(f"the login tells no name of a person as {env.oidc_username_claim}", "ask an admin")
    email = claims.get("email") if claims.get("email_verified") is True else ""
    groups = [told] if isinstance(told, str) else told if isinstance(told, list) else []
    return Person(
        name.strip(), email if isinstance(email, str) else "", frozenset(one for one in groups if isinstance(one, str))
    )


def sign_in(who: Person, known: User | None) -> User:
    """The user that they are from now on, their roles as their groups say. `known`: the user that they were last time.
    403 for who may not come in."""
    rules = oidc.parse_groups(settings.ENV.oidc_groups)
    problem = _unwelcome(who, rules)
    if problem and not known:
        raise problem
    with transaction.atomic():
        log.act_as(known.username if known else who.name, "oidc")
        user = known or _user_of(who)
        if not user.is_active:
            raise _refused(f"the account {user.username} is switched off", "ask an admin")
        groups = frozenset[str]() if problem else who.groups
        if who.email and user.email != who.email[:254]:
            User.objects.filter(pk=user.pk).update(email=who.email[:254])
        _set_admin(user, rules, is_admin=rules.is_admin(groups))
        _set_roles(user, rules, rules.roles(groups))
    if problem:
        raise problem  # and what they had is gone, for their tokens, too
    return user


def _unwelcome(who: Person, rules: oidc.GroupMapping) -> Problem | None:
    domains = oidc.describe(settings.ENV.oidc_allowed_domains)
    if domains and who.email.rpartition("@")[2].lower() not in {domain.lower() for domain in domains}:
        return _refused("your login has no verified e-mail address of an allowed domain", "ask an admin")
    if rules.grants and not rules.roles(who.groups) and not rules.is_admin(who.groups):
        return _refused("none of your groups has a role here", "ask an admin which group you should be in")
    return None


def _user_of(who: Person) -> User:
    """An account of that name is theirs only if it has no password and is nobody's yet: whoever may choose a name at
    the provider must become neither the local admin nor somebody who came in by the provider before."""
    user = User.objects.select_for_update().filter(username=who.name).first()
    if user is None:
        if not settings.ENV.oidc_create_users:
            raise _refused(f"there is no account {who.name} here", "ask an admin to make one")
        user = User.objects.create_user(who.name, who.email[:254])
        log.record("user.create", f"user {who.name}", None, {"email": who.email})
    elif not _is_free(user):
        raise _refused(
            f"there is an account {who.name} here that is not bound to this login",
            "ask an admin; one without a password that nobody has come in as is yours at your next login",
        )
    return user


def _is_free(user: User) -> bool:
    from allauth.socialaccount.models import SocialAccount  # not installed as an app where this is switched off

    is_local = user.has_usable_password() or user.is_superuser or user.groups.filter(name=GROUP).exists()
    return user.is_active and not is_local and not SocialAccount.objects.filter(user=user).exists()


def _set_admin(user: User, rules: oidc.GroupMapping, *, is_admin: bool) -> None:
    if rules.names_admins and user.is_superuser != is_admin:
        User.objects.filter(pk=user.pk).update(is_superuser=is_admin, is_staff=is_admin)
        log.record("user.change", f"user {user.username}", {"is_admin": user.is_superuser}, {"is_admin": is_admin})
        user.is_superuser = user.is_staff = is_admin


def _set_roles(user: User, rules: oidc.GroupMapping, wanted: Mapping[str, str]) -> None:
    """In the tenants that the rules name; memberships of others are given here, by hand."""
    held = {one.tenant.name: one for one in Membership.objects.filter(user=user).select_related("tenant")}
    for tenant in Tenant.objects.filter(name__in=rules.tenants):
        role, membership = wanted.get(tenant.name), held.get(tenant.name)
        if role is None and membership is not None:
            membership.delete()
            before = {"role": str(membership.role)}
            log.record("member.remove", f"{user.username} in {tenant.name}", before, None)
        elif role is not None and (membership is None or membership.role != role):
            tenants.set_member(tenant, user, role)
    if missing := set(wanted) - set(Tenant.objects.filter(name__in=wanted).values_list("name", flat=True)):
        logger.warning("GPUSCHED_OIDC_GROUPS names tenants that are not there: %s", ", ".join(sorted(missing)))


def _refused(detail: str, step: str) -> Problem:
    return Problem(403, "not_admitted", detail, next_step=step)
