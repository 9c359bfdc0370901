"""The calls about the secrets of a tenant, and whose they are when no tenant is named."""

from gpusched.client.calls.access import default_tenant
from gpusched.client.calls.flows import all_items
from gpusched.client.transport.call import (
    API,
    Call,
    get,
    no_content,
    segment,
    write,
)
from gpusched.client.transport.exchange import Flow, exchange
from gpusched.protocol.rest.access import Secret
from gpusched.protocol.rest.jobs import Page


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
