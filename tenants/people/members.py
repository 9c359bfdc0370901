"""Members of a tenant: list and add them, change their roles, and remove them. A tenant keeps an owner who can act."""

from collections.abc import Sequence

from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction

from gpusched import oidc
from gpusched.lib.api.problems import Problem, invalid, not_found, still_there
from gpusched.lib.audit import log
from gpusched.lib.bus import events
from gpusched.lib.db.sql import Row, query
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.states import Role
from tenants.auth.identity import Identity
from tenants.models import Membership, Tenant
from tenants.people import users
from tenants.tenancy import tenants
from tenants.tenancy.names import GROUP

_MEMBERS = """
    SELECT u.username AS user, m.role, u.is_active,
           CASE WHEN EXISTS (SELECT 1 FROM auth_user_groups ug JOIN auth_group g ON g.id = ug.group_id
                              WHERE ug.user_id = u.id AND g.name = %(group)s) THEN 'service' ELSE 'person' END AS kind
      FROM tenants_membership m JOIN auth_user u ON u.id = m.user_id
     WHERE m.tenant_id = %(tenant)s AND (%(user)s::text IS NULL OR u.username = %(user)s)
     ORDER BY m.role = 'owner' DESC, m.role = 'member' DESC, u.username
"""


def list_members(tenant: Tenant) -> list[Row]:
    """Return the members, owners first."""
    return query(_MEMBERS, {"tenant": tenant.pk, "group": GROUP, "user": None})


def add(tenant: Tenant, username: str, role: Role) -> Row:
    """Add a user as a member. 404 for a user who cannot log in, 409 for an existing member."""
    user = User.objects.filter(username=username, is_active=True).exclude(groups__name=GROUP).first()
    if user is None:
        raise not_found(f"user '{username[: users.MAX_NAME]}'", "check the name; an admin creates users")
    with transaction.atomic():
        _lock(tenant)
        _require_not_managed(tenant, user)
        membership = Membership.objects.filter(tenant=tenant, user=user).first()
        if membership is not None:
            raise Problem(
                409,
                "already_member",
                f"{username} is already a member of tenant {tenant.name}, with the role {membership.role}",
                next_step="change the role instead",
            )
        tenants.set_member(tenant, user, role)
        events.changed("tenants", [tenant.pk])
    return _represent(tenant, username)


def set_role(tenant: Tenant, username: str, role: Role) -> Row:
    """Change the role of a member. 404 for a user who is not a member, 409 for the last owner."""
    with transaction.atomic():
        _lock(tenant)
        membership = _membership(tenant, username)
        if role != membership.role:
            if membership.role == Role.OWNER:
                _require_another_owner(tenant, membership)
            tenants.set_member(tenant, membership.user, role)
            events.changed("tenants", [tenant.pk])
    return _represent(tenant, username)


def remove(tenant: Tenant, username: str) -> None:
    """End a membership; the jobs stay. 404 for a user who is not a member, 409 for the last owner."""
    with transaction.atomic():
        _lock(tenant)
        membership = _membership(tenant, username)
        if membership.role == Role.OWNER:
            _require_another_owner(tenant, membership)
        membership.delete()
        log.record("member.remove", f"{username} in {tenant.name}", {"role": str(membership.role)}, None)
        events.changed("tenants", [tenant.pk])


def user_ids(field: str, names: Sequence[str], tenant_id: int, identity: Identity) -> list[int]:
    """Return the ids of the users that a field of a request names; 400 for names without one. Only an admin learns of
    users of other tenants."""
    users = User.objects.filter(username__in=[name for name in names if "\x00" not in name])
    if not identity.can_administer:
        users = users.filter(memberships__tenant=tenant_id)
    known = dict(users.values_list("username", "pk"))
    missing = [name for name in names if name not in known]
    if missing:
        message = f"there is no user '{missing[0][:150]}', or not in this tenant"
        raise invalid([FieldError(field, "unknown_value", message)])
    return sorted(known.values())


def why_owner_starts_nothing(user: User, tenant: Tenant, identity: Identity) -> str:
    """Return why the server starts nothing more for what this user owns in the tenant, such as replicas of an endpoint;
    empty if it may. `identity`: the user's at present."""
    if not user.is_active:
        return f"the account of its owner, {user.get_username()}, is disabled"
    if not identity.has(Role.MEMBER, tenant.pk):
        return f"its owner, {user.get_username()}, no longer has the role member in tenant {tenant.name}"
    return ""


def has_owner(tenant: Tenant) -> bool:
    """Return whether an owner of the tenant can log in."""
    return Membership.objects.filter(tenant=tenant, role=Role.OWNER, user__is_active=True).exists()


def _lock(tenant: Tenant) -> None:
    """Serialize edits of members, so that two owners cannot remove each other at once. Submits do
    not wait for this lock."""
    Tenant.objects.select_for_update(no_key=True).get(pk=tenant.pk)


def _membership(tenant: Tenant, username: str) -> Membership:
    """Return a membership that can be edited by hand. 404 or 409 otherwise."""
    rows = Membership.objects.filter(tenant=tenant, user__username=username).select_related("user")
    membership = rows.first() if "\x00" not in username else None
    if membership is None:
        raise not_found(f"member '{username[: users.MAX_NAME]}' of tenant {tenant.name}", "see the list of members")
    if membership.user.groups.filter(name=GROUP).exists():
        raise Problem(
            409,
            "service_account",
            f"{username} is a service account, whose role comes with its tokens",
            next_step="create or revoke its tokens: gpusched token create, revoke --service",
        )
    _require_not_managed(tenant, membership.user)
    return membership


def _require_not_managed(tenant: Tenant, user: User) -> None:
    if tenant.name in oidc.parse_groups(settings.ENV.oidc_groups).tenants and users.has_single_sign_on(user):
        raise users.managed_by_provider(f"the role of {user.username} in tenant {tenant.name}")


def _require_another_owner(tenant: Tenant, membership: Membership) -> None:
    """Raise a 409 for the last owner. Disabled owners do not count."""
    owners = Membership.objects.filter(tenant=tenant, role=Role.OWNER, user__is_active=True)
    if not owners.exclude(pk=membership.pk).exists():
        name = membership.user.get_username()
        raise Problem(
            409,
            "last_owner",
            f"{name} is the last owner of tenant {tenant.name}",
            next_step="make another member an owner first",
        )


def _represent(tenant: Tenant, username: str) -> Row:
    rows = query(_MEMBERS, {"tenant": tenant.pk, "group": GROUP, "user": username})
    return still_there(rows, f"member '{username}' of tenant {tenant.name}")
