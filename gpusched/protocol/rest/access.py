"""The server's answers about access, as structs: tokens, secrets, accounts and members."""

from datetime import datetime

import msgspec


class JoinToken(msgspec.Struct, kw_only=True):
    """A join token. `command`: the command to run on the new node."""

    token: str
    expires_at: datetime | None = None
    command: str = ""


class Token(msgspec.Struct, kw_only=True):
    """An API token. `made_by`: the id of the token that created it, which revokes it, too; None: created on the page or
    at a login."""

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
    """A new token. `token` is the secret text; only this answer has it."""

    token: str


class RevokedToken(Token, kw_only=True):
    """A revoked token. `also_revoked`: the ids of the tokens that it created, which are revoked, too."""

    also_revoked: list[int] = []


class ServiceToken(Token, kw_only=True):
    """A token of a program; `user` is the program's account in its tenant, `name@tenant`."""

    user: str = ""


class RevokedServiceToken(ServiceToken, kw_only=True):
    """A revoked token. `also_revoked`: the ids of the tokens that it created, which are revoked, too."""

    also_revoked: list[int] = []


class IssuedServiceToken(ServiceToken, kw_only=True):
    """A new token. `token` is the secret text; only this answer has it."""

    token: str


class Secret(msgspec.Struct, kw_only=True):
    """A secret of a tenant, which jobs name; the server sends its value only to their nodes."""

    name: str
    set_by: str = ""
    set_at: datetime | None = None


class Member(msgspec.Struct, kw_only=True):
    """A tenant of a user, and the user's role in it."""

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
    """A created account. `one_time_password`: only this answer has it; None if none was generated."""

    one_time_password: str | None = None


class DisabledUser(User, kw_only=True):
    """A disabled account. `tenants_without_owner`: tenants without an owner who can log in."""

    tenants_without_owner: list[str] = []


class ResetPassword(msgspec.Struct, kw_only=True):
    """A replaced password. `one_time_password`: only this answer has it; None if none was generated."""

    username: str
    one_time_password: str | None = None
    revoked_tokens: int = 0


class ChangedPassword(msgspec.Struct, kw_only=True):
    """The result of changing one's own password. `status`: changed, unchanged or would_be_changed."""

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
