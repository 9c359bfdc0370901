"""Endpoints: their load, latencies, replicas and costs; and the page of one endpoint, where a request can be tried."""

import math
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.ui.page import as_sentence, page, perform, refusal, show
from gpusched.lib.api.problems import Problem, invalid, still_there
from gpusched.protocol.job_request import FieldError
from serving.endpoints import activity
from serving.endpoints import endpoints as actions
from serving.endpoints.representation import represent_endpoints
from serving.models import Endpoint, EndpointState, ModelType, Protocol
from tenants import buckets
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity
from tenants.models import BucketUse

# Name, label, unit and step of the limits that the page changes.
LIMITS = (
    ("max_batch", "Requests in a batch", "", 1),
    ("max_wait_ms", "Wait for a full batch", "ms", 1),
    ("max_queue", "Waiting requests", "", 1),
    ("timeout_seconds", "Timeout", "seconds", "any"),
    ("min_replicas", "Replicas at least", "", 1),
    ("max_replicas", "Replicas at most", "", 1),
    ("idle_seconds", "Idle replicas end after", "seconds", 1),
)
_WINDOW = {"window_requests": activity.WINDOW_REQUESTS, "window_minutes": activity.WINDOW_MINUTES}


@page
def endpoints(request: HttpRequest, identity: Identity) -> HttpResponse:
    return show(request, identity, "endpoints/page.html", _WINDOW)


@page
def endpoint(request: HttpRequest, identity: Identity, tenant: str, name: str) -> HttpResponse:
    model = _find(identity, tenant, name)
    represented = still_there(represent_endpoints(None, [model.pk]), f"endpoint '{name}'")
    context: dict[str, Any] = {
        **_WINDOW,
        "endpoint": represented,
        "topic": f"endpoint:{model.pk}",
        "settings_topic": f"endpoint-settings:{model.pk}",
        "limits": [(*limit, _written(represented[limit[0]])) for limit in LIMITS],
        "buckets": buckets.standing(model.tenant_id, identity.user_id, BucketUse.TASKS),
        "refusal": _refusal(model, identity),
        "may_change": identity.may_act_for(model.owner_id, model.tenant_id),
        "try_kind": _try_kind(model),
        "is_openai": model.protocol == Protocol.OPENAI,
        "is_active": model.state == EndpointState.ACTIVE,
    }
    return show(request, identity, "endpoints/endpoint.html", context)


@require_POST
@page
def drain(request: HttpRequest, identity: Identity, tenant: str, name: str) -> HttpResponse:
    """Let the endpoint refuse new requests and end its replicas once the waiting ones are done."""
    model = _find(identity, tenant, name)

    def do() -> str:
        actions.drain(model.pk, identity)
        return f"endpoint {name} drains: it accepts no more requests"

    return perform(request, "endpoint", do, tenant, name)


@require_POST
@page
def change_limits(request: HttpRequest, identity: Identity, tenant: str, name: str) -> HttpResponse:
    """Change the limits of the endpoint to the submitted ones."""
    model = _find(identity, tenant, name)

    def do() -> str:
        changes = {field: _number(request, field, step) for field, _, _, step in LIMITS}
        actions.change(model.pk, changes, identity, int(_number(request, "version", 1)))
        return f"the limits of endpoint {name} are changed"

    return perform(request, "endpoint", do, tenant, name)


@require_POST
@page
def switch_prewarming(request: HttpRequest, identity: Identity, tenant: str, name: str) -> HttpResponse:
    """Turn pre-warming of the endpoint on or off."""
    model = _find(identity, tenant, name)

    def do() -> str:
        value = request.POST.get("prewarming", "")
        if value not in ("on", "off"):
            raise invalid([FieldError("prewarming", "unknown_value", "must be on or off")])
        actions.change(model.pk, {"prewarming": value == "on"}, identity)
        return f"pre-warming of endpoint {name} is {value}"

    return perform(request, "endpoint", do, tenant, name)


def _find(identity: Identity, tenant: str, name: str) -> Endpoint:
    return actions.find(name, find_tenant(tenant, identity).pk, identity)


def _refusal(model: Endpoint, identity: Identity) -> str:
    """Return why the caller cannot try the endpoint; empty if they can."""
    if model.state != EndpointState.ACTIVE:
        return as_sentence(f"endpoint '{model.name}' is draining and accepts no requests")
    try:
        actions.require_use(model, identity)
    except Problem as problem:
        return refusal(problem)
    return ""


def _try_kind(model: Endpoint) -> str:
    """Return what the form sends: a task, or a prompt to the OpenAI API."""
    if model.protocol != Protocol.OPENAI:
        return "batch"
    return "embedding" if model.type == ModelType.EMBEDDING else "chat"


def _written(number: float) -> str:
    """Return a number as a number field has it: 30, not 30.0."""
    return str(int(number) if float(number).is_integer() else number)


def _number(request: HttpRequest, field: str, step: int | str) -> float:
    """Return a submitted number, a whole one for `step` 1."""
    text = request.POST.get(field, "")
    try:
        number = int(text) if step == 1 else float(text)
        is_number = math.isfinite(number)
    except (ValueError, OverflowError):  # the latter for hundreds of digits
        is_number = False
    if not is_number:
        message = "must be a whole number" if step == 1 else "must be a number"
        raise invalid([FieldError(field, "invalid", message)])
    return number
