"""REST for the events of all jobs: live (server-sent events, long poll), or those after an id."""

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from django.contrib.auth.models import User
from django.http import HttpRequest, StreamingHttpResponse
from django.http.response import HttpResponseBase
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import JsonRenderer, page_limit, read_query, whole_number
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.events import EventPage
from jobs.events.log import KINDS, Reader, newest_id, read, require_issued
from jobs.events.stream import hub
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity, identity, identity_of_token
from tenants.auth.page_access import Session, access_of

MAX_WAIT_SECONDS = 30
PARAMETERS = {
    "since": "id of an event: return later ones; 0: from the beginning; default: from now on",
    "wait": "0 to 30 (0): seconds to wait for an event",
    "tenant": "name of a tenant",
    "kind": "kinds separated by commas, such as started,ended",
    "limit": "1 to 1000, default 100",
}


class EventStreamRenderer(JsonRenderer):
    """Render refusals of streams as JSON; the view itself writes the streams."""

    media_type = "text/event-stream"


class Events(APIView):
    renderer_classes: list[type[BaseRenderer]] = [JsonRenderer, EventStreamRenderer]

    @documented(
        "List or follow the events of all jobs that you can see, in order",
        tag="jobs",
        who="viewer",
        answer=EventPage,
        parameters=PARAMETERS,
        media_types=("application/json", "text/event-stream"),
        refusals=(400, 401, 403, 404, 406, 429),
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Covers your own tenants. With `Accept: text/event-stream` the answer is a stream that continues from
        `Last-Event-ID`; otherwise a page, after which you continue with `since` set to its `next_since`. docs/rest.md,
        Following events, explains more."""
        params = read_query(request)
        wait = whole_number(params, "wait", 0, 0, MAX_WAIT_SECONDS)
        is_stream = isinstance(getattr(request, "accepted_renderer", None), EventStreamRenderer)
        since = _since(request, params, is_stream=is_stream)
        caller = identity(request)
        reader = _reader(caller, params)
        if not is_stream:
            page = read(reader, since)
            if page["items"] or page["more"] or not wait:
                return Response(page)
            since = page["next_since"]
        reauthorize = _reauthorization(request._request, request.META.get("HTTP_AUTHORIZATION", ""), reader)
        if is_stream:
            return _streamed(caller, hub.stream(reader, since, reauthorize), "text/event-stream")
        return _streamed(caller, hub.poll(reader, since, wait, reauthorize), "application/json")


def _since(request: Request, params: dict[str, str], *, is_stream: bool) -> int:
    # A browser that reconnects sends its first address, and the last event's id in a header.
    if is_stream and (last := request.headers.get("Last-Event-ID")):
        params = {**params, "since": last}
    if "since" not in params:
        return newest_id()
    since = whole_number(params, "since", 0, 0, 2**62)
    require_issued(since)
    return since


def _reader(caller: Identity, params: dict[str, str]) -> Reader:
    """Return the reader. Refuse filters that no event can match: an unknown kind (400), or a tenant that the caller
    cannot see (404)."""
    kinds = tuple(params["kind"].split(",")) if "kind" in params else None
    for kind in kinds or ():
        if kind not in KINDS:
            message = f"there is no kind '{kind[:50]}'; use {', '.join(KINDS)}"
            raise invalid([FieldError("kind", "unknown_value", message)])
    tenant = find_tenant(params["tenant"], caller).pk if "tenant" in params else None
    return Reader(_visible(caller), tenant, kinds, page_limit(params))


def _visible(caller: Identity) -> tuple[int, ...] | None:
    visible = caller.visible_tenants()
    return None if visible is None else tuple(visible)


def _reauthorization(request: HttpRequest, header: str, reader: Reader) -> Any:
    """Return a function that returns the reader with current memberships; None once its login has ended, by a new
    password, too, or its token is revoked."""
    user, key = request.user, request.session.session_key or ""
    session = Session(user.pk, key, user.password) if isinstance(user, User) and not header else None

    def ask() -> Reader | None:
        if session is None:
            caller = identity_of_token(header)
            return None if caller is None else replace(reader, visible=_visible(caller))
        [access] = access_of([session])
        return replace(reader, visible=access.visible) if access.is_allowed else None

    return ask


def _streamed(caller: Identity, content: AsyncIterator[bytes], media_type: str) -> StreamingHttpResponse:
    # Proxies such as nginx must pass each piece on at once.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return hub.limiter.streamed(caller.username, content, content_type=media_type, headers=headers)
