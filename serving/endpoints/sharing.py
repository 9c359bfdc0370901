"""Endpoints that share the replicas of another one: of the same tenant and template, which take turns on them."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpusched.lib.api.problems import Problem, invalid
from gpusched.protocol.job_request import FieldError
from serving.models import Endpoint, EndpointState, Protocol
from tenants.auth.identity import Identity

FIELD = "shares_replicas_with"
# Fields that count only in the endpoint that has the replicas.
_OF_REPLICAS = ("min_replicas", "max_replicas", "idle_seconds", "prewarming", "warm_up", "warm_up_seconds")


def shared_endpoint(tenant_id: int, name: str, identity: Identity) -> Endpoint:
    """Lock and return the endpoint whose replicas a new one shares, so that it is not removed meanwhile. 400 if it
    cannot be shared, 403 for a caller who may not change it."""
    matches = Endpoint.objects.exclude(state=EndpointState.REMOVED).select_for_update(of=("self",))
    endpoint = matches.filter(tenant_id=tenant_id, name=name).first() if "\x00" not in name else None
    if endpoint is None:
        raise _refusal("unknown_value", f"the tenant has no endpoint '{name[:63]}'")
    identity.require(identity.role_for(endpoint.owner_id), tenant_id, f"endpoint '{name}'")
    if endpoint.protocol != Protocol.BATCH:
        raise _refusal("conflict", f"endpoint '{name}' has the protocol openai; only replicas of batch can be shared")
    if endpoint.replicas_of is not None:
        text = f"endpoint '{name}' has no replicas of its own; share those of '{endpoint.replicas_of.name}'"
        raise _refusal("conflict", text)
    return endpoint


def errors(endpoint: Endpoint, values: Mapping[str, Any]) -> Sequence[FieldError]:
    """Return what does not go with the endpoint's sharing, of the fields that the caller sets."""
    owner = endpoint.replicas_of
    if owner is None:
        return []
    found = []
    if values.get("template") not in (None, {}, owner.template):
        found.append(FieldError("template", "conflict", f"is that of endpoint '{owner.name}'; leave it out"))
    if endpoint.protocol != Protocol.BATCH:
        found.append(FieldError("protocol", "conflict", "must be batch to share replicas"))
    text = f"does not apply: set it of endpoint '{owner.name}', which has the replicas"
    defaults = Endpoint()
    for name in _OF_REPLICAS:
        if values.get(name) is not None and values[name] != getattr(defaults, name):
            found.append(FieldError(name, "conflict", text))
    return found


def memory_errors(endpoint: Endpoint, replica_mb: int) -> Sequence[FieldError]:
    """Return an error for each endpoint that shares the replicas of this one and whose requests would no longer fit."""
    if not endpoint.pk:  # a new one
        return []
    names = _sharing(endpoint).filter(memory_per_request_mb__gt=replica_mb).values_list("name", flat=True)
    text = "gives a replica less GPU memory than memory_per_request_mb of endpoint '{}', which shares it"
    return [FieldError("template", "conflict", text.format(name)) for name in sorted(names)]


def require_unshared(endpoint: Endpoint) -> None:
    """Raise 409 if other endpoints share the replicas of this one."""
    names = sorted(_sharing(endpoint).values_list("name", flat=True))
    if names:
        detail = f"endpoint '{endpoint.name}' has the replicas of {', '.join(names)}"
        raise Problem(409, "replicas_shared", detail, next_step="remove those endpoints first")


def copy_template(endpoint: Endpoint) -> None:
    """Write the template of an endpoint to those that share its replicas."""
    _sharing(endpoint).update(template=endpoint.template)


def _sharing(endpoint: Endpoint) -> Any:
    return Endpoint.objects.exclude(state=EndpointState.REMOVED).filter(replicas_of=endpoint)


def _refusal(code: str, text: str) -> Problem:
    return invalid([FieldError(FIELD, code, text)])
