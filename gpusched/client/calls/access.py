"""The calls about who may do what: tokens of people, programs and new nodes, login, and oneself."""

from gpusched.client.calls.flows import all_items
from gpusched.client.errors import Invalid
from gpusched.client.transport.call import API, Call, get, json_as, no_content, segment, without_none, write
from gpusched.client.transport.exchange import Flow, exchange
from gpusched.protocol.rest.access import IssuedServiceToken, IssuedToken, JoinToken, Me, Secret, ServiceToken, Token
from gpusched.protocol.rest.jobs import Page


def join_token(*, expires_in_hours: float = 24) -> Call[JoinToken]:
    """A secret with which one new node may join."""
    return write("POST", "/nodes/join-tokens", JoinToken, {"expires_in_hours": expires_in_hours})


def tokens() -> Call[Page[Token]]:
    """Your API tokens, without their secrets."""
    return get("/tokens", Page[Token])


def create_token(
    name: str, *, scopes: list[str] | None = None, tenant: str | None = None, expires_in_days: float | None = 90
) -> Call[IssuedToken]:
    """A new token (read and write unless told). None for `expires_in_days` never expires."""
    body = {
        "name": name,
        "scopes": ["read", "write"] if scopes is None else scopes,
        "tenant": tenant,
        "expires_in_days": expires_in_days,
    }
    return write("POST", "/tokens", IssuedToken, body)


def revoke_token(token_id: int) -> Call[None]:
    """The token is refused from now on."""
    return Call("DELETE", f"{API}/tokens/{token_id}", no_content)


def service_tokens(tenant: str) -> Call[Page[ServiceToken]]:
    """The tokens of a tenant's programs, without their secrets (owners)."""
    return get(_of(tenant), Page[ServiceToken])


def create_service_token(
    tenant: str,
    name: str,
    *,
    role: str | None = None,
    scopes: list[str] | None = None,
    expires_in_days: float | None = 365,
) -> Call[IssuedServiceToken]:
    """A token for a program, which belongs to no person (owners). `role`: member or viewer; None: that of the
    program's other tokens, else member."""
    body = {
        "name": name,
        **({"role": role} if role else {}),
        "scopes": ["read", "write"] if scopes is None else scopes,
        "expires_in_days": expires_in_days,
    }
    return write("POST", _of(tenant), IssuedServiceToken, body)


def revoke_service_token(tenant: str, token_id: int) -> Call[ServiceToken]:
    """The token of the program is refused from now on."""
    return write("DELETE", f"{_of(tenant)}/{token_id}", ServiceToken)


def login(username: str, password: str, token_name: str, *, new_password: str | None = None) -> Call[IssuedToken]:
    """Changes a password into a token. `new_password` replaces it; a one-time password needs one."""
    body = {"username": username, "password": password, "token_name": token_name}
    body |= without_none(new_password=new_password)
    # Without a caller there are no idempotency keys.
    return Call("POST", f"{API}/login", json_as(IssuedToken), body=body, is_repeatable=False)


def me() -> Call[Me]:
    """Who the token belongs to and what it may do."""
    return get("/me", Me)


def default_tenant(tenant: str | None, patience: float) -> Flow[str]:
    """The tenant that is meant: the one named, or the only one that the caller belongs to."""
    if tenant:
        return tenant
    mine = sorted(member.name for member in (yield from exchange(me(), patience)).tenants)
    if len(mine) != 1:
        raise Invalid("say for which tenant", next_step=f"yours: {', '.join(mine) or 'none'}")
    return mine[0]


def _of(tenant: str) -> str:
    return f"/tenants/{segment(tenant)}/service-tokens"


def secrets(tenant: str | None, patience: float) -> Flow[list[Secret]]:
    """The secrets of a tenant by name, with who set each and when; never a value."""
    owner = yield from default_tenant(tenant, patience)
    return (yield from all_items(get(_path(owner), Page[Secret]), patience))


def set_secret(name: str, value: str, tenant: str | None, patience: float) -> Flow[Secret]:
    """Keeps a value under a name, in place of the one before."""
    owner = yield from default_tenant(tenant, patience)
    return (yield from exchange(write("PUT", f"{_path(owner)}/{segment(name)}", Secret, {"value": value}), patience))


def delete_secret(name: str, tenant: str | None, patience: float) -> Flow[None]:
    """Attempts that name it and are ordered from now on fail."""
    owner = yield from default_tenant(tenant, patience)
    # Not repeatable: the second of two would not find what the first has deleted.
    call = Call("DELETE", f"{API}{_path(owner)}/{segment(name)}", no_content, is_repeatable=False)
    return (yield from exchange(call, patience))


def _path(tenant: str) -> str:
    return f"/tenants/{segment(tenant)}/secrets"
