"""The calls for people: accounts and their passwords, and the members of tenants."""

from gpusched.client.transport.call import Call, delete, get, segment, user_segment, without_none, write
from gpusched.protocol.rest.access import ChangedPassword, CreatedUser, DisabledUser, ResetPassword, TenantMember, User
from gpusched.protocol.rest.jobs import Page


def users(*, active: bool | None = None, kind: str | None = None) -> Call[Page[User]]:
    """Return all accounts (admins). `active`: only those that can log in, or cannot; `kind`: person or service."""
    return get("/users", Page[User], active=None if active is None else str(active).lower(), kind=kind)


def user(username: str) -> Call[User]:
    """Return an account, with its tenants and roles (admins)."""
    return get(_user(username), User)


def create_user(
    username: str, *, email: str = "", is_admin: bool = False, password: str | None = None, login: str = "password"
) -> Call[CreatedUser]:
    """Create the account of a person (admins). Without a password the server generates a one-time password; only this
    answer has it. `login`: password, or sso for an account without one."""
    body = {
        "username": username,
        "email": email,
        "is_admin": is_admin,
        "login": login,
        **without_none(password=password),
    }
    return write("POST", "/users", CreatedUser, body)


def change_user(username: str, *, email: str | None = None, is_admin: bool | None = None) -> Call[User]:
    """Change the given fields of an account (admins)."""
    return write("PATCH", _user(username), User, without_none(email=email, is_admin=is_admin))


def disable_user(username: str) -> Call[DisabledUser]:
    """Disable an account: its logins, sessions and tokens are refused (admins)."""
    return write("POST", f"{_user(username)}/disable", DisabledUser)


def enable_user(username: str) -> Call[User]:
    """Enable an account: its logins, sessions and tokens are accepted again (admins)."""
    return write("POST", f"{_user(username)}/enable", User)


def reset_password(username: str, *, password: str | None = None, keep_tokens: bool = False) -> Call[ResetPassword]:
    """Replace another user's password (admins). Without one the server generates a one-time password; only this answer
    has it. Ends the user's sessions, and their tokens unless `keep_tokens`."""
    body = {"keep_tokens": keep_tokens, **without_none(password=password)}
    return write("POST", f"{_user(username)}/reset-password", ResetPassword, body)


def change_password(old_password: str, new_password: str, *, revoke_tokens: bool = False) -> Call[ChangedPassword]:
    """Replace your own password. `revoke_tokens`: also revoke all your tokens, including the one in use."""
    body = {"old_password": old_password, "new_password": new_password, "revoke_tokens": revoke_tokens}
    # A repeat would use the revoked token.
    return write("PUT", "/me/password", ChangedPassword, body, is_repeatable=not revoke_tokens)


def members(tenant: str) -> Call[Page[TenantMember]]:
    """Return the members of a tenant, owners first."""
    return get(_members(tenant), Page[TenantMember])


def add_member(tenant: str, user: str, *, role: str = "member") -> Call[TenantMember]:
    """Add a user to a tenant as viewer, member or owner (owners)."""
    return write("POST", _members(tenant), TenantMember, {"user": user, "role": role})


def set_role(tenant: str, user: str, role: str) -> Call[TenantMember]:
    """Change the role of a member of a tenant (owners)."""
    return write("PATCH", f"{_members(tenant)}/{user_segment(user)}", TenantMember, {"role": role})


def remove_member(tenant: str, user: str) -> Call[None]:
    """Remove a member; their jobs continue (owners)."""
    return delete(f"{_members(tenant)}/{user_segment(user)}")


def _user(username: str) -> str:
    return f"/users/{user_segment(username)}"


def _members(tenant: str) -> str:
    return f"/tenants/{segment(tenant)}/members"
