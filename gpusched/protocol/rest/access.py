"""What the server answers about who may do what, as structs: tokens, secrets, and oneself."""

from datetime import datetime

import msgspec


class JoinToken(msgspec.Struct, kw_only=True):
    """`command` is what to type on the new node."""

    token: str
    expires_at: datetime | None = None
    command: str = ""


class Token(msgspec.Struct, kw_only=True):
    """`made_by`: the id of the token that made it, with which it is revoked; None: made on the page or at a login."""

    id: int
    name: str = ""
    prefix: str = ""
    scopes: list[str] = []
    tenant: str | None = None
    made_by: int | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None
    last_used_at: datetime | None = None
    revoked_at: datetime | None = None


class IssuedToken(Token, kw_only=True):
    """`token` is the secret text, which the server shows this once."""

    token: str


class RevokedToken(Token, kw_only=True):
    """`also_revoked`: the ids of those made with it, which are revoked with it."""

    also_revoked: list[int] = []


class ServiceToken(Token, kw_only=True):
    """A token of a program; `user` is the account that the program has in its tenant, `name@tenant`."""

    user: str = ""


class RevokedServiceToken(ServiceToken, kw_only=True):
    """`also_revoked`: the ids of those made with it, which are revoked with it."""

    also_revoked: list[int] = []


class IssuedServiceToken(ServiceToken, kw_only=True):
    """`token` is the secret text, which the server shows this once."""

    token: str


class Secret(msgspec.Struct, kw_only=True):
    """A secret of a tenant, which jobs name; its value never leaves the server but for their nodes."""

    name: str
    set_by: str = ""
    set_at: datetime | None = None


class Member(msgspec.Struct, kw_only=True):
    """A tenant of a user, and the role there."""

    name: str
    role: str = ""


class User(msgspec.Struct, kw_only=True):
    """An account. `kind`: person or service (of a program). `login`: password, one_time_password (to be replaced at the
    next login), sso (through the identity provider) or none. `last_login_at`: on the page."""

    username: str
    email: str = ""
    kind: str = "person"
    login: str = ""
    is_admin: bool = False
    is_active: bool = True
    tenants: list[Member] = []
    created_at: datetime | None = None
    last_login_at: datetime | None = None


class CreatedUser(User, kw_only=True):
    """A created account. `one_time_password` is shown this once; None if none was generated."""

    one_time_password: str | None = None


class DisabledUser(User, kw_only=True):
    """A disabled account. `tenants_without_owner`: tenants of which nobody who can log in is an owner now."""

    tenants_without_owner: list[str] = []


class ResetPassword(msgspec.Struct, kw_only=True):
    """A replaced password. `one_time_password` is shown this once; None if none was generated."""

    username: str
    one_time_password: str | None = None
    revoked_tokens: int = 0


class ChangedPassword(msgspec.Struct, kw_only=True):
    """The result of a change of one's own password. `status`: changed, unchanged or would_be_changed."""

    username: str
    status: str = "changed"
    revoked_tokens: int = 0


class TenantMember(msgspec.Struct, kw_only=True):
    """A member of a tenant. `kind`: person or service (of a program)."""

    user: str
    role: str = ""
    kind: str = "person"
    is_active: bool = True


class Me(msgspec.Struct, kw_only=True):
    user: str
    is_admin: bool = False
    scopes: list[str] = []
    tenants: list[Member] = []
