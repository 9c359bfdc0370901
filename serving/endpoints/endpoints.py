"""Create, change, drain and remove endpoints, each in one transaction."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from django.core.exceptions import ValidationError
from django.db import DEFAULT_DB_ALIAS, IntegrityError, transaction

from gpusched.lib.api.problems import Problem, invalid, not_found
from gpusched.lib.audit import log
from gpusched.lib.bus import events
from gpusched.lib.db.sql import prepared, violates
from gpusched.protocol.job_request import FieldError, JobRequest, validate
from gpusched.protocol.states import Role
from jobs.submit import admission
from serving.endpoints import endpoint_cache, sharing
from serving.models import DEFAULT_COSTS, Endpoint, EndpointState, InferenceRequest, ModelType, Protocol, RequestState
from tenants.auth.identity import Identity
from tenants.models import Tenant
from tenants.tenancy import archived

_OF_NAME = f"""
    SELECT e.*, {endpoint_cache.ROW} AS read_as, t.name AS tenant_name, t.archived_at AS tenant_archived_at
      FROM serving_endpoint e JOIN tenants_all t ON t.id = e.tenant_id
     WHERE e.state <> 'removed' AND (%(name)s::text IS NULL OR e.name = %(name)s) ORDER BY e.name, e.id
"""
# Fields of a job that make no sense for a replica, which runs until it is not needed.
_NOT_IN_TEMPLATES = ("tenant", "array", "depends_on", "ref", "not_before", "max_runtime_minutes")


def create(tenant_id: int, fields: Mapping[str, Any], identity: Identity) -> Endpoint:
    """Create an endpoint. 400 for wrong fields, 409 for a name in use, 422 if no node could run a replica."""
    identity.require(Role.MEMBER, tenant_id, "this tenant")
    values = dict(fields)
    if values.get("cost") is None:
        values["cost"] = DEFAULT_COSTS[ModelType(values.get("type", ModelType.OTHER))]
    shared = values.pop(sharing.FIELD, None)
    try:
        with transaction.atomic():
            endpoint = Endpoint(tenant_id=tenant_id, owner_id=identity.user_id, **values)
            require_open(endpoint)
            if shared is not None:
                endpoint.replicas_of = sharing.shared_endpoint(tenant_id, shared, identity)
            _check(endpoint, identity, values)
            endpoint.save(force_insert=True)
            log.record("endpoint.create", f"endpoint {endpoint.name}", None, _facts(endpoint))
            events.changed("endpoints", [endpoint.pk])
    except IntegrityError as error:
        if not violates(error, "endpoint_name_is_unique"):
            raise
        detail = f"the tenant already has an endpoint '{values['name']}'"
        raise Problem(409, "name_taken", detail, next_step="choose another name") from error
    return endpoint


def change(endpoint_id: int, changes: Mapping[str, Any], identity: Identity, version: int | None = None) -> Endpoint:
    """Change fields. Running replicas keep the template that they were started with. 412 if it is not at `version`."""
    with transaction.atomic():
        endpoint = _locked(endpoint_id, identity)
        if version is not None and version != endpoint.version:
            detail = f"this endpoint was changed meanwhile (it is at version {endpoint.version}, not {version})"
            raise Problem(412, "version_conflict", detail, next_step="read it again and repeat the change")
        before = _facts(endpoint)
        for name, value in changes.items():
            setattr(endpoint, name, value)
        _check(endpoint, identity, changes)
        endpoint.version += 1
        endpoint.save()
        sharing.copy_template(endpoint)
        log.record("endpoint.change", f"endpoint {endpoint.name}", before, _facts(endpoint))
        events.changed("endpoints", [endpoint_id])
    return endpoint


def drain(endpoint_id: int, identity: Identity) -> Endpoint:
    """Refuse new requests; replicas end once those that wait are done. Harmless when repeated."""
    with transaction.atomic():
        endpoint = _locked(endpoint_id, identity)
        if endpoint.state == EndpointState.ACTIVE:
            _set_state(endpoint, EndpointState.DRAINING, "endpoint.drain")
    return endpoint


def remove(endpoint_id: int, identity: Identity, *, with_queue: bool = False) -> None:
    """Remove an endpoint and stop its replicas. 409 while requests wait or run, unless `with_queue`: waiting ones are
    then refused."""
    with transaction.atomic():
        endpoint = _locked(endpoint_id, identity)
        states = [RequestState.QUEUED, RequestState.RUNNING]
        unfinished = InferenceRequest.objects.filter(endpoint=endpoint, state__in=states).count()
        if unfinished and not with_queue:
            detail = f"endpoint '{endpoint.name}' has {unfinished} unfinished requests"
            raise Problem(409, "not_empty", detail, next_step="drain it first, or remove it with its queue")
        sharing.require_unshared(endpoint)
        _set_state(endpoint, EndpointState.REMOVED, "endpoint.remove")


def visible(name: str | None, identity: Identity) -> list[Endpoint]:
    """Return the endpoints of this name (None: of any) in the tenants that the caller sees, by name."""
    if name is not None and "\x00" in name:
        return []
    rows = prepared(_OF_NAME, {"name": name})
    found = [_endpoint(row) for row in rows]
    if name is not None:
        endpoint_cache.remember(name, found, [row["read_as"] for row in rows])
    return [endpoint for endpoint in found if identity.sees(endpoint.tenant_id)]


def find(name: str, tenant_id: int | None, identity: Identity) -> Endpoint:
    """Return an endpoint that the caller may see, by its name and tenant; None: the only one of that name."""
    matches = [e for e in visible(name, identity) if tenant_id in (None, e.tenant_id)]
    if not matches:
        raise not_found(f"endpoint '{name[:63]}'", next_step="list the endpoints")
    if len(matches) > 1:
        tenants = ", ".join(sorted(endpoint.tenant.name for endpoint in matches))
        raise invalid([FieldError("tenant", "required", f"several tenants have an endpoint '{name}': {tenants}")])
    return matches[0]


def cached_usable(name: str, tenant: str | None, identity: Identity) -> Endpoint | None:
    """Return the endpoint that `find` would return if nothing has changed since this process read it, and that the
    caller may use then. None: read it."""
    matches = [e for e in endpoint_cache.last(name) if identity.sees(e.tenant_id) and tenant in (None, e.tenant.name)]
    return matches[0] if len(matches) == 1 and may_use(matches[0], identity) else None


def _endpoint(row: Mapping[str, Any]) -> Endpoint:
    """Return a row of _OF_NAME as a model: each submit needs one, and a queryset takes longer than the query."""
    columns = [field.attname for field in Endpoint._meta.concrete_fields]
    endpoint = Endpoint.from_db(DEFAULT_DB_ALIAS, columns, [row[column] for column in columns])
    tenant = {"id": row["tenant_id"], "name": row["tenant_name"], "archived_at": row["tenant_archived_at"]}
    endpoint.tenant = Tenant.from_db(DEFAULT_DB_ALIAS, list(tenant), list(tenant.values()))
    return endpoint


def may_use(endpoint: Endpoint, identity: Identity) -> bool:
    """Return whether the caller may submit requests to an endpoint that it sees."""
    return _is_allowed(endpoint, identity) and identity.has(Role.MEMBER, endpoint.tenant_id)


def require_use(endpoint: Endpoint, identity: Identity) -> None:
    """Raise 403 unless the caller may submit requests to an endpoint that it sees."""
    if not _is_allowed(endpoint, identity):
        detail = f"you are not among the users of endpoint '{endpoint.name}'"
        raise Problem(403, "not_permitted", detail, next_step="ask its owner to add you")
    identity.require(Role.MEMBER, endpoint.tenant_id, f"endpoint '{endpoint.name}'")


def _is_allowed(endpoint: Endpoint, identity: Identity) -> bool:
    allowed = endpoint.allowed_users
    return allowed is None or identity.user_id in (*allowed, endpoint.owner_id) or identity.can_administer


def require_open(endpoint: Endpoint) -> None:
    """Raise 409 if the tenant is archived, and so gets no replicas."""
    if endpoint.tenant.archived_at is not None:
        raise archived.refusal(endpoint.tenant.name)


def template_request(endpoint: Endpoint) -> JobRequest:
    """Return the job request of a replica."""
    template = {"name": f"endpoint {endpoint.name}", **endpoint.template, "tenant": endpoint.tenant.name}
    return msgspec.convert(template, JobRequest)


def _locked(endpoint_id: int, identity: Identity) -> Endpoint:
    endpoint = Endpoint.objects.select_for_update(of=("self",)).select_related("tenant").get(pk=endpoint_id)
    identity.require(identity.role_for(endpoint.owner_id), endpoint.tenant_id, f"endpoint '{endpoint.name}'")
    return endpoint


def _set_state(endpoint: Endpoint, state: EndpointState, action: str) -> None:
    log.record(action, f"endpoint {endpoint.name}", {"state": str(endpoint.state)}, {"state": str(state)})
    endpoint.state, endpoint.version = state, endpoint.version + 1
    endpoint.save(update_fields=["state", "version"])
    events.changed("endpoints", [endpoint.pk])


def _check(endpoint: Endpoint, identity: Identity, values: Mapping[str, Any]) -> None:
    """Raise the problem of an endpoint whose fields do not fit. `values`: those that the caller sets."""
    errors = list(sharing.errors(endpoint, values))
    if endpoint.replicas_of is not None:
        endpoint.template = endpoint.replicas_of.template
    try:
        endpoint.full_clean(validate_unique=False, validate_constraints=False)
    except ValidationError as error:
        errors += [FieldError(name, "invalid", text) for name, texts in error.message_dict.items() for text in texts]
    if endpoint.min_replicas > endpoint.max_replicas:
        errors.append(FieldError("min_replicas", "out_of_range", "must be at most max_replicas"))
    if (endpoint.protocol == Protocol.OPENAI) != (endpoint.port is not None):
        errors.append(FieldError("port", "conflict", "is required for the protocol openai, and only for it"))
    errors += [*_warm_up_errors(endpoint), *_template_errors(endpoint, values)]
    if errors:
        raise invalid(errors)
    admission.require_admissible(template_request(endpoint), endpoint.tenant_id, identity)


def _warm_up_errors(endpoint: Endpoint) -> Sequence[FieldError]:
    if endpoint.warm_up is None:
        return []
    if not endpoint.warm_up or not endpoint.warm_up[0]:
        return [FieldError("warm_up", "required", 'give a command as an array, like ["cat", "/data/model"], or null')]
    if any("\x00" in word for word in endpoint.warm_up):
        return [FieldError("warm_up", "invalid", "must not contain the character NUL")]
    if "script" in endpoint.template:
        return [FieldError("warm_up", "conflict", "needs a template with a command; a script can do it first itself")]
    return []


def _template_errors(endpoint: Endpoint, values: Mapping[str, Any]) -> Sequence[FieldError]:
    refused = [name for name in _NOT_IN_TEMPLATES if name in endpoint.template]
    if refused:
        return [FieldError(f"template.{name}", "conflict", "does not apply to a replica") for name in refused]
    try:
        request = template_request(endpoint)
    except msgspec.ValidationError as error:
        return [FieldError("template", "invalid", str(error))]
    errors = [FieldError(f"template.{error.field}", error.code, error.message) for error in validate(request)]
    if (gpu_memory_mb := request.fixed_gpu_memory_mb) is None:
        return errors
    replica_mb = gpu_memory_mb * max(request.gpu_count, 1)
    if endpoint.memory_per_request_mb > replica_mb:
        errors.append(FieldError("memory_per_request_mb", "out_of_range", "is more than the GPU memory of a replica"))
    if "template" in values:
        errors += sharing.memory_errors(endpoint, replica_mb)
    return errors


def _facts(endpoint: Endpoint) -> dict[str, Any]:
    names = [field.name for field in Endpoint._meta.concrete_fields if field.editable and field.name != "id"]
    hidden = ("tenant", "owner", "created_at", "replicas_of")
    values = {name: getattr(endpoint, name) for name in names if name not in hidden}
    if endpoint.replicas_of is not None:
        values[sharing.FIELD] = endpoint.replicas_of.name
    return {name: str(value) if isinstance(value, str) else value for name, value in values.items()}
