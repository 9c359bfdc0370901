"""The calls for access: tokens of people, programs and new nodes, login, secrets, and the caller's own account."""

from gpusched.client.transport.call import API, Call, delete, get, json_as, segment, without_none, write
from gpusched.protocol.rest.access import (
    IssuedServiceToken,
    IssuedToken,
    JoinToken,
    Me,
    RevokedServiceToken,
    RevokedToken,
    Secret,
    ServiceToken,
    Token,
)
from gpusched.protocol.rest.jobs import Page


def join_token(*, expires_in_hours: float = 24) -> Call[JoinToken]:
    """Create a join token, with which new nodes can join until it expires."""
    return write("POST", "/nodes/join-tokens", JoinToken, {"expires_in_hours": expires_in_hours})


def tokens() -> Call[Page[Token]]:
    """Return your API tokens, without their secrets."""
    return get("/tokens", Page[Token])


def create_token(
    name: str, *, scopes: list[str] | None = None, tenant: str | None = None, expires_in_days: float | None = 90
) -> Call[IssuedToken]:
    """Create a token (default scopes: read and write). None for `expires_in_days`: it never expires."""
    body = {
        "name": name,
        "scopes": ["read", "write"] if scopes is None else scopes,
        "tenant": tenant,
        "expires_in_days": expires_in_days,
    }
    return write("POST", "/tokens", IssuedToken, body)


def revoke_token(token_id: int) -> Call[RevokedToken]:
    """Revoke a token, and those created with it (`also_revoked`): the server refuses them from now on."""
    return write("DELETE", f"/tokens/{token_id}", RevokedToken)


def service_tokens(tenant: str) -> Call[Page[ServiceToken]]:
    """Return the tokens of a tenant's programs, without their secrets (owners)."""
    return get(_service_tokens_path(tenant), Page[ServiceToken])


def create_service_token(
    tenant: str,
    name: str,
    *,
    role: str | None = None,
    scopes: list[str] | None = None,
    expires_in_days: float | None = 365,
) -> Call[IssuedServiceToken]:
    """Create a token for a program; it belongs to no person (owners). `role`: member or viewer; None: that of the
    program's other tokens, else member."""
    body = {
        "name": name,
        **({"role": role} if role else {}),
        "scopes": ["read", "write"] if scopes is None else scopes,
        "expires_in_days": expires_in_days,
    }
    return write("POST", _service_tokens_path(tenant), IssuedServiceToken, body)


def revoke_service_token(tenant: str, token_id: int) -> Call[RevokedServiceToken]:
    """Revoke a program's token, and those created with it (`also_revoked`): the server refuses them from now on."""
    return write("DELETE", f"{_service_tokens_path(tenant)}/{token_id}", RevokedServiceToken)


def login(username: str, password: str, token_name: str, *, new_password: str | None = None) -> Call[IssuedToken]:
    """Exchange a password for a token. `new_password` replaces the password; a one-time password requires it."""
    body = {"username": username, "password": password, "token_name": token_name}
    body |= without_none(new_password=new_password)
    # Idempotency keys belong to a caller, who is not known before the login.
    return Call("POST", f"{API}/login", json_as(IssuedToken), body=body, is_repeatable=False)


def me() -> Call[Me]:
    """Return the owner of the token in use, and its permissions."""
    return get("/me", Me)


def _service_tokens_path(tenant: str) -> str:
    return f"/tenants/{segment(tenant)}/service-tokens"


def secrets(tenant: str) -> Call[Page[Secret]]:
    """Return the secrets of a tenant by name, with who set each and when; never a value."""
    return get(_secrets_path(tenant), Page[Secret])


def set_secret(tenant: str, name: str, value: str) -> Call[Secret]:
    """Store a value under a name, replacing the previous one."""
    return write("PUT", f"{_secrets_path(tenant)}/{segment(name)}", Secret, {"value": value})


def delete_secret(tenant: str, name: str) -> Call[None]:
    """Delete a secret. Attempts that name it and are ordered later fail."""
    return delete(f"{_secrets_path(tenant)}/{segment(name)}")


def _secrets_path(tenant: str) -> str:
    return f"/tenants/{segment(tenant)}/secrets"
