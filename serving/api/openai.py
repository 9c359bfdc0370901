"""The OpenAI API at /v1, for its unmodified clients: `base_url` is the server's address with /v1, `api_key` a token."""

from collections.abc import Callable
from typing import Any

import msgspec
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.views import APIView

from gpusched.lib.api.problems import Problem, as_problem, database_unavailable, invalid
from gpusched.lib.api.rest import decode, raw_body
from gpusched.lib.bus import events
from gpusched.lib.db.outages import is_temporary
from gpusched.lib.limits import MAX_OPENAI_BODY_BYTES
from gpusched.lib.web.deferred import DeferredResponse
from gpusched.protocol.job_request import FieldError
from serving.endpoints import endpoints
from serving.models import Endpoint, EndpointState, Protocol
from serving.openai import places
from serving.openai.errors import error_of
from serving.openai.proxy import Forwarded
from serving.requests.submit import NewRequest, Submitted, submit
from serving.web import openai, serving
from tenants import buckets
from tenants.auth.identity import Identity, identity
from tenants.auth.page_access import credential_of

MAX_LEASE_SECONDS = 5.0


class _Asked(msgspec.Struct, frozen=True):
    """The part of a body that gpusched reads. The replica checks the rest."""

    model: str


class _OpenAIView(APIView):
    """A view whose errors have the form of the OpenAI API."""

    def get_exception_handler(self) -> Callable[[Exception, dict[str, Any]], HttpResponse | None]:
        return self._error

    def _error(self, error: Exception, context: dict[str, Any]) -> HttpResponse | None:
        problem = as_problem(error)
        if problem is None and is_temporary(error):
            problem = database_unavailable(self.request, error)
        return None if problem is None else error_of(problem)


@extend_schema(exclude=True)
class Models(_OpenAIView):
    def get(self, request: Request) -> HttpResponse:
        """List the endpoints of this protocol that the caller may use."""
        return _json({"object": "list", "data": [_model(name, e) for name, e in _usable(identity(request)).items()]})


@extend_schema(exclude=True)
class OneModel(_OpenAIView):
    def get(self, request: Request, model: str) -> HttpResponse:
        endpoint = _endpoint(model, identity(request))
        return _json(_model(model, endpoint))


@extend_schema(exclude=True)
class Completions(_OpenAIView):
    """`POST /v1/chat/completions`, `/v1/completions` and `/v1/embeddings`."""

    def post(self, request: Request) -> HttpResponseBase:
        """Queue the request, and answer with the response of a replica."""
        caller, body = identity(request), _body(request)
        asked = decode(body, _Asked)
        endpoint = _endpoint(asked.model, caller)
        dispatcher = serving.wait_for_lease(MAX_LEASE_SECONDS)
        if dispatcher is None:
            raise Problem(503, "unanswered", "this web process has just started", next_step="try again", retry_after=1)
        with transaction.atomic():
            submitted = submit(endpoint, [NewRequest(b"", "")], caller, dispatcher)
            place = next(iter(places.assign(dispatcher, endpoint.pk, submitted.ids)), None)
            if place is None:  # a replica may have to start
                events.changed("endpoints", [endpoint.pk])
        [request_id] = submitted.ids
        assert endpoint.port is not None
        forwarded = Forwarded(
            request_id=request_id,
            endpoint_id=endpoint.pk,
            endpoint=endpoint.name,
            port=endpoint.port,
            max_batch=endpoint.max_batch,
            cost=endpoint.cost,
            timeout_seconds=endpoint.timeout_seconds,
            path=request.get_full_path(),
            body=body if asked.model == endpoint.name else _renamed(body, endpoint.name),
            accept=request.headers.get("Accept", "*/*"),
            headers=_headers(submitted),
            place=place,
            credential=credential_of(request._request),
        )
        return DeferredResponse(lambda: openai.proxy.forward(forwarded))


@csrf_exempt
def unknown(request: HttpRequest, rest: str) -> HttpResponse:
    """Answer any other address below /v1."""
    step = "use models, chat/completions, completions or embeddings"
    return error_of(Problem(404, "not_found", f"there is no {request.method} /v1/{rest[:100]} here", next_step=step))


def _body(request: Request) -> bytes:
    """Return the body; 413 if it is too long."""
    body = raw_body(request)
    if len(body) > MAX_OPENAI_BODY_BYTES:
        detail = f"the body has more than {MAX_OPENAI_BODY_BYTES >> 20} MiB"
        raise Problem(413, "too_large", detail, next_step="send a shorter context, or fewer inputs at once")
    return body or b"{}"


def _endpoint(model: str, caller: Identity) -> Endpoint:
    """Return the endpoint that `model` names, as NAME or TENANT/NAME, and that the caller may use."""
    tenant, _, name = model.rpartition("/")
    matches = [e for e in endpoints.visible(name, caller) if tenant in ("", e.tenant.name)]
    if not matches:
        detail = f"there is no model '{model[:200]}', or you may not see it"
        step = "GET /v1/models lists the models"
        raise Problem(404, "model_not_found", detail, next_step=step, errors=[FieldError("model", "unknown", detail)])
    if len(matches) > 1:
        names = " or ".join(f"'{e.tenant.name}/{e.name}'" for e in matches)
        raise invalid([FieldError("model", "ambiguous", f"several tenants have a model '{name}': use {names}")])
    endpoints.require_use(matches[0], caller)
    return matches[0]


def _usable(caller: Identity) -> dict[str, Endpoint]:
    """Return the endpoints that the caller may use, by the name of the model: with the tenant if it is ambiguous."""
    visible = endpoints.visible(None, caller)
    names = [endpoint.name for endpoint in visible]
    usable: dict[str, Endpoint] = {}
    for endpoint in visible:
        is_open = endpoint.state == EndpointState.ACTIVE and endpoint.tenant.archived_at is None
        if endpoint.protocol == Protocol.OPENAI and is_open:
            is_unique = names.count(endpoint.name) == 1
            if endpoints.may_use(endpoint, caller):
                usable[endpoint.name if is_unique else f"{endpoint.tenant.name}/{endpoint.name}"] = endpoint
    return usable


def _model(name: str, endpoint: Endpoint) -> dict[str, Any]:
    created = int(endpoint.created_at.timestamp())
    return {"id": name, "object": "model", "created": created, "owned_by": endpoint.tenant.name}


def _renamed(body: bytes, name: str) -> bytes:
    """Return the body with the model's name without its tenant, as the replica knows it."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return msgspec.json.encode({**fields, "model": name})


def _headers(submitted: Submitted) -> dict[str, str]:
    headers = buckets.headers(submitted.room) if submitted.room else {}
    headers["X-Task-Id"] = str(submitted.ids[0])
    if submitted.warning:
        headers["Queue-Warning"] = submitted.warning
    return headers


def _json(value: Any) -> HttpResponse:
    return HttpResponse(msgspec.json.encode(value), content_type="application/json")
