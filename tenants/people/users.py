"""Create, list, change, disable and enable accounts of users and programs, and reset their passwords."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import User
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.core.validators import validate_email
from django.db import IntegrityError, transaction

from gpusched import oidc
from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.bus import events
from gpusched.lib.db.sql import Row, query, violates
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from tenants.auth import passwords, tokens
from tenants.models import ApiToken, Membership
from tenants.tenancy.names import GROUP

MAX_NAME, MAX_EMAIL = 150, 254
_SINGLE_SIGN_ON = "EXISTS (SELECT 1 FROM socialaccount_socialaccount s WHERE s.user_id = u.id)"
_USERS = """
    SELECT u.id, u.username, u.email, u.is_superuser AS is_admin, u.is_active, u.date_joined, u.last_login, u.password,
           EXISTS (SELECT 1 FROM auth_user_groups ug JOIN auth_group g ON g.id = ug.group_id
                    WHERE ug.user_id = u.id AND g.name = %(group)s) AS is_service,
           {single_sign_on} AS has_single_sign_on,
           (SELECT o.digest FROM tenants_onetimepassword o WHERE o.user_id = u.id) AS one_time_digest,
           (SELECT coalesce(json_agg(json_build_object('name', t.name, 'role', m.role) ORDER BY t.name), '[]')
              FROM tenants_membership m JOIN tenants_tenant t ON t.id = m.tenant_id
             WHERE m.user_id = u.id) AS tenants
      FROM auth_user u WHERE {where}
"""
_FILTER = """
    (%(active)s::bool IS NULL OR u.is_active = %(active)s) AND (%(after)s::bigint IS NULL OR u.id > %(after)s)
    AND (%(kind)s::text IS NULL OR (%(kind)s = 'service') = EXISTS (
        SELECT 1 FROM auth_user_groups ug JOIN auth_group g ON g.id = ug.group_id
         WHERE ug.user_id = u.id AND g.name = %(group)s))
    ORDER BY u.id LIMIT %(limit)s
"""


@dataclass(frozen=True)
class NewAccount:
    """`password` None: a one-time password is generated; `has_password` False: the account is for single sign-on."""

    username: str
    email: str = ""
    is_admin: bool = False
    password: str | None = None
    has_password: bool = True


def list_users(*, active: bool | None, kind: str | None, after: int | None, limit: int) -> list[Row]:
    """Return a page of accounts in the order of their ids, each with its `id`."""
    params = {"active": active, "kind": kind, "after": after, "limit": limit, "group": GROUP}
    return [{"id": row["id"], **_represent(row)} for row in query(_sql(_FILTER), params)]


def represent(user: User) -> Row:
    """Represent an account for the API."""
    [row] = query(_sql("u.id = %(id)s"), {"id": user.pk, "group": GROUP})
    return _represent(row)


def find(username: str) -> User:
    """Return the account; 404 if there is none."""
    user = User.objects.filter(username=username).first() if "\x00" not in username else None
    if user is None:
        raise not_found(f"user '{username[:MAX_NAME]}'", "see gpusched user list")
    return user


def create(account: NewAccount) -> tuple[User, str | None]:
    """Create the account of a person. Return it and its one-time password, if one was generated. 400 for a bad field,
    409 for a name in use, ignoring case."""
    user = User(
        username=User.normalize_username(account.username), email=account.email,
        is_superuser=account.is_admin, is_staff=account.is_admin,
    )  # fmt: skip
    _require_good_fields(user, account)
    one_time = passwords.generate() if account.has_password and account.password is None else None
    try:
        with transaction.atomic():
            if User.objects.filter(username__iexact=user.username).exists():
                raise _name_taken(user.username)
            user.set_unusable_password()
            user.save(force_insert=True)
            if text := one_time or account.password:
                passwords.assign(user, text, is_one_time=one_time is not None)
            facts = {"email": user.email, "is_admin": account.is_admin, "has_password": account.has_password}
            log.record("user.create", f"user {user.username}", None, facts)
    except IntegrityError as error:
        if not violates(error, "auth_user_username_key"):
            raise
        raise _name_taken(user.username) from error
    return user, one_time


def change(user: User, changes: Mapping[str, Any]) -> None:
    """Change `email` or `is_admin`. 409 for the last admin, or if the identity provider manages it."""
    if "email" in changes:
        _require_email(changes["email"])
    with transaction.atomic():
        user = _locked(user)
        previous = {"email": user.email, "is_admin": user.is_superuser}
        after = {**previous, **changes}
        if after == previous:
            return
        if after["is_admin"] != previous["is_admin"]:
            _require_may_change_admin(user, is_admin=after["is_admin"])
        user.email, user.is_superuser, user.is_staff = after["email"], after["is_admin"], after["is_admin"]
        user.save(update_fields=["email", "is_superuser", "is_staff"])
        log.record("user.change", f"user {user.username}", previous, after)


def disable(user: User) -> list[str]:
    """Refuse the account's logins, sessions and tokens until it is enabled. Return the tenants that have no owner left
    who can log in. 409 for the last admin."""
    with transaction.atomic():
        user = _locked(user)
        if user.is_superuser and user.is_active:
            require_another_admin(user)
        _set_active(user, is_active=False)
        return [row["name"] for row in query(_WITHOUT_OWNER, [user.pk])]


def enable(user: User) -> None:
    """Accept the account's logins, sessions and tokens again."""
    with transaction.atomic():
        _set_active(_locked(user), is_active=True)


_WITHOUT_OWNER = """
    SELECT t.name FROM tenants_membership m JOIN tenants_tenant t ON t.id = m.tenant_id
     WHERE m.user_id = %s AND m.role = 'owner' AND t.archived_at IS NULL AND NOT EXISTS (
           SELECT 1 FROM tenants_membership o JOIN auth_user u ON u.id = o.user_id
            WHERE o.tenant_id = m.tenant_id AND o.role = 'owner' AND u.is_active)
     ORDER BY t.name
"""


def reset_password(user: User, password: str | None, *, keep_tokens: bool) -> tuple[str | None, int]:
    """Replace a password: by `password`, or by a generated one-time password. Return that, and how many tokens were
    revoked. The user's sessions end; so do the tokens, unless they are to be kept."""
    require_password_login(user)
    if password is not None:
        passwords.require_good(password, user, "password")
    one_time = passwords.generate() if password is None else None
    with transaction.atomic():
        user = _locked(user)
        passwords.assign(user, one_time or password or "", is_one_time=one_time is not None)
        revoked = 0 if keep_tokens else revoke_tokens(user)
        facts = {"is_one_time": one_time is not None, "revoked_tokens": revoked}
        log.record("user.reset_password", f"user {user.username}", None, facts)
    return one_time, revoked


def change_own_password(user: User, old: str, password: str, *, revoke: bool) -> int:
    """Replace a password by a checked one, for its user. Return how many tokens were revoked. 400 if `old` is no longer
    the password."""
    with transaction.atomic():
        if not passwords.replace(user, old, password):
            raise wrong_password()
        revoked = revoke_tokens(user) if revoke else 0
        log.record("user.change_password", f"user {user.username}", None, {"revoked_tokens": revoked})
    return revoked


def wrong_password() -> Problem:
    return invalid([FieldError("old_password", "wrong_password", "is not your password")])


def revoke_tokens(user: User) -> int:
    """Revoke all tokens of the account and those made with them. Return how many."""
    usable = ApiToken.objects.filter(user=user, revoked_at=None)
    count = usable.count()
    for token in usable:
        tokens.revoke_token(token)
    return count


def require_another_admin(user: User) -> None:
    """Raise a 409 if there is no other active admin. Call it in a transaction that has locked the admins: of two admins
    who remove each other at once, the second waits for the first."""
    if not query("SELECT 1 FROM auth_user WHERE is_superuser AND is_active AND id <> %s", [user.pk]):
        step = "make another user an admin first: PATCH /api/v1/users/{username} with is_admin"
        raise Problem(409, "last_admin", f"{user.username} is the only admin", next_step=step)


def require_password_login(user: User) -> None:
    """Raise a 409 for an account without password login."""
    [row] = query(_sql("u.id = %(id)s"), {"id": user.pk, "group": GROUP})
    only_for = oidc.describe(settings.ENV.password_login_only_for)
    if row["is_service"]:
        reason, step = "is a service account, which has tokens only", "create or revoke its tokens"
    elif row["has_single_sign_on"]:
        reason, step = "logs in through the identity provider", "reset the password there"
    elif only_for and user.username not in only_for:
        reason, step = "may not log in with a password", "add the name to GPUSCHED_PASSWORD_LOGIN_ONLY_FOR"
    else:
        return
    raise Problem(409, "no_password_login", f"{user.username} {reason}", next_step=step)


def has_single_sign_on(user: User) -> bool:
    """Return whether the account is bound to a login of the identity provider."""
    return bool(
        query(f"SELECT {_single_sign_on()} AS is_bound FROM auth_user u WHERE u.id = %s", [user.pk])[0]["is_bound"]
    )


def _sql(condition: str) -> str:
    return _USERS.format(single_sign_on=_single_sign_on(), where=condition)


def _single_sign_on() -> str:
    # Its table exists only after a first start with an issuer.
    return _SINGLE_SIGN_ON if apps.is_installed("allauth.socialaccount") else "false"


def _represent(row: Row) -> Row:
    return {
        "username": row["username"],
        "email": row["email"],
        "kind": "service" if row["is_service"] else "person",
        "login": _login(row),
        "is_admin": row["is_admin"],
        "is_active": row["is_active"],
        "tenants": row["tenants"],
        "created_at": rfc3339(row["date_joined"]),
        "last_login_at": rfc3339(row["last_login"]),
    }


def _login(row: Row) -> str:
    """Return how the account logs in."""
    if row["has_single_sign_on"]:
        return "sso"
    if not User(password=row["password"]).has_usable_password():
        return "none"
    is_one_time = passwords.is_one_time(row["one_time_digest"], row["password"])
    return "one_time_password" if is_one_time else "password"


def _set_active(user: User, *, is_active: bool) -> None:
    if user.is_active == is_active:
        return
    user.is_active = is_active
    user.save(update_fields=["is_active"])
    action = "user.enable" if is_active else "user.disable"
    log.record(action, f"user {user.username}", {"is_active": not is_active}, {"is_active": is_active})
    events.changed("tenants", list(Membership.objects.filter(user=user).values_list("tenant_id", flat=True)))


def lock_admins(user: User) -> None:
    """Lock the account and those of all admins in one order: an edit may have to count admins, and two edits that each
    lock one row first would deadlock."""
    query("SELECT id FROM auth_user WHERE is_superuser OR id = %s ORDER BY id FOR UPDATE", [user.pk])


def _locked(user: User) -> User:
    lock_admins(user)
    return User.objects.select_for_update().get(pk=user.pk)


def _require_may_change_admin(user: User, *, is_admin: bool) -> None:
    if oidc.parse_groups(settings.ENV.oidc_groups).names_admins and has_single_sign_on(user):
        raise managed_by_provider(f"whether {user.username} is an admin")
    if query("SELECT 1 FROM auth_user_groups ug JOIN auth_group g ON g.id = ug.group_id"
             " WHERE ug.user_id = %s AND g.name = %s", [user.pk, GROUP]):  # fmt: skip
        raise invalid([FieldError("is_admin", "not_permitted", "a service account cannot be an admin")])
    if not is_admin and user.is_active:
        require_another_admin(user)


def managed_by_provider(subject: str) -> Problem:
    """Return the 409 for an edit that the next login would revert."""
    return Problem(
        409, "managed_by_provider", f"the groups at the identity provider determine {subject} (GPUSCHED_OIDC_GROUPS)",
        next_step="change the groups there",
    )  # fmt: skip


def _require_good_fields(user: User, account: NewAccount) -> None:
    try:
        UnicodeUsernameValidator()(user.username)
    except ValidationError:
        is_good = False
    else:
        is_good = len(user.username) <= MAX_NAME and any(character.isalnum() for character in user.username)
    if not is_good:
        message = f"1 to {MAX_NAME} letters, digits and @ . + - _, with at least one letter or digit"
        raise invalid([FieldError("username", "invalid", message)])
    _require_email(account.email)
    if not account.has_password and account.password is not None:
        raise invalid([FieldError("password", "conflict", "an account for single sign-on has no password")])
    if account.password is not None:
        passwords.require_good(account.password, user, "password")


def _require_email(email: str) -> None:
    try:
        if email:
            validate_email(email)
    except ValidationError as error:
        raise invalid([FieldError("email", "invalid", "must be an e-mail address, or empty")]) from error
    if len(email) > MAX_EMAIL:
        raise invalid([FieldError("email", "too_long", f"at most {MAX_EMAIL} characters")])


def _name_taken(username: str) -> Problem:
    return Problem(409, "name_taken", f"there is already a user '{username}'", next_step="choose another name")
