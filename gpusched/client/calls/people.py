"""The calls about people: accounts and their passwords, and the members of tenants."""

from gpusched.client.transport.call import API, Call, get, json_as, no_content, segment, without_none, write
from gpusched.protocol.rest.access import ChangedPassword, CreatedUser, DisabledUser, ResetPassword, TenantMember, User
from gpusched.protocol.rest.jobs import Page


def users(*, active: bool | None = None, kind: str | None = None) -> Call[Page[User]]:
    """All accounts (admins). `active`: only those that may log in, or may not; `kind`: person or service."""
    return get("/users", Page[User], active=None if active is None else str(active).lower(), kind=kind)


def user(username: str) -> Call[User]:
    """One account, with its tenants and roles (admins)."""
    return get(_user(username), User)


def create_user(
    username: str, *, email: str = "", is_admin: bool = False, password: str | None = None, login: str = "password"
) -> Call[CreatedUser]:
    """Creates the account of a person (admins). Without a password the server generates a one-time password, which the
    answer has this once. `login`: password, or sso for one without."""
    body = {
        "username": username,
        "email": email,
        "is_admin": is_admin,
        "login": login,
        **without_none(password=password),
    }
    return write("POST", "/users", CreatedUser, body)


def change_user(username: str, *, email: str | None = None, is_admin: bool | None = None) -> Call[User]:
    """Changes what is given of an account (admins)."""
    return write("PATCH", _user(username), User, without_none(email=email, is_admin=is_admin))


def disable_user(username: str) -> Call[DisabledUser]:
    """Refuses the account's logins, sessions and tokens until it is enabled (admins)."""
    return write("POST", f"{_user(username)}/disable", DisabledUser)


def enable_user(username: str) -> Call[User]:
    """Accepts the account's logins, sessions and tokens again (admins)."""
    return write("POST", f"{_user(username)}/enable", User)


def reset_password(username: str, *, password: str | None = None, keep_tokens: bool = False) -> Call[ResetPassword]:
    """Replaces another user's password (admins). Without one the server generates a one-time password, which the answer
    has this once. Ends the user's sessions and, unless they are kept, tokens."""
    body = {"keep_tokens": keep_tokens, **without_none(password=password)}
    return write("POST", f"{_user(username)}/reset-password", ResetPassword, body)


def change_password(old_password: str, new_password: str, *, revoke_tokens: bool = False) -> Call[ChangedPassword]:
    """Replaces your own password. `revoke_tokens`: also revokes all your tokens, the one in use too."""
    body = {"old_password": old_password, "new_password": new_password, "revoke_tokens": revoke_tokens}
    # With its token revoked, a repeat would be refused.
    return Call("PUT", f"{API}/me/password", json_as(ChangedPassword), body=body, is_repeatable=not revoke_tokens)


def members(tenant: str) -> Call[Page[TenantMember]]:
    """The members of a tenant, owners first."""
    return get(_members(tenant), Page[TenantMember])


def add_member(tenant: str, user: str, *, role: str = "member") -> Call[TenantMember]:
    """Makes a user a viewer, member or owner of a tenant (owners)."""
    return write("POST", _members(tenant), TenantMember, {"user": user, "role": role})


def set_role(tenant: str, user: str, role: str) -> Call[TenantMember]:
    """Gives a member of a tenant another role (owners)."""
    return write("PATCH", f"{_members(tenant)}/{segment(user)}", TenantMember, {"role": role})


def remove_member(tenant: str, user: str) -> Call[None]:
    """Ends a membership; jobs go on (owners)."""
    # Not repeatable: the second of two would not find what the first has removed.
    return Call("DELETE", f"{API}{_members(tenant)}/{segment(user)}", no_content, is_repeatable=False)


def _user(username: str) -> str:
    return f"/users/{segment(username)}"


def _members(tenant: str) -> str:
    return f"/tenants/{segment(tenant)}/members"
