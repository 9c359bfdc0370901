"""REST for the events of all jobs: as they come (server-sent events, long poll), or all that there are since an id."""

from collections.abc import AsyncIterator
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
from jobs.events.log import KINDS, Reader, frontier, read, require_issued
from jobs.events.stream import hub
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity, identity, identity_of_token, identity_of_user

MAX_WAIT_SECONDS = 30
PARAMETERS = {
    "since": "id of an event: those after it; 0: from the beginning; without it: from now on",
    "wait": "0 to 30 (0): so many seconds to wait until there is one",
    "tenant": "name of a tenant",
    "kind": "kinds separated by commas, such as started,ended",
    "limit": "1 to 1000, default 100",
}


class EventStreamRenderer(JsonRenderer):
    """Streams are no renderer's work; what is refused is told as JSON."""

    media_type = "text/event-stream"


class Events(APIView):
    renderer_classes: list[type[BaseRenderer]] = [JsonRenderer, EventStreamRenderer]

    @documented(
        "What happens to jobs that you may see, in order",
        tag="jobs",
        who="viewer",
        answer=EventPage,
        parameters=PARAMETERS,
        media_types=("application/json", "text/event-stream"),
        refusals=(400, 401, 403, 404, 406, 429),
    )
    def get(self, request: Request) -> HttpResponseBase:
        """Of own tenants. With `Accept: text/event-stream` a stream that goes on from `Last-Event-ID`. Else one answer;
        go on with `since` set to its `next_since`. docs/rest.md, Following events, says more."""
        given = read_query(request)
        wait = whole_number(given, "wait", 0, 0, MAX_WAIT_SECONDS)
        is_stream = isinstance(getattr(request, "accepted_renderer", None), EventStreamRenderer)
        since = _since(request, given, is_stream=is_stream)
        who = identity(request)
        _require_existing(who, given)
        reader = _reader(who, given)
        if is_stream:
            again = _reauthorization(request._request, request.META.get("HTTP_AUTHORIZATION", ""), given)
            return _streamed(who, hub.stream(reader, since, again), "text/event-stream")
        page = read(reader, since)
        if page["items"] or page["more"] or not wait:
            return Response(page)
        return _streamed(who, hub.poll(reader, page["next_since"], wait), "application/json")


def _since(request: Request, given: dict[str, str], *, is_stream: bool) -> int:
    # A browser that connects again sends the address of the first time, and the id of the last event beside it.
    if is_stream and (last := request.headers.get("Last-Event-ID")):
        given = {**given, "since": last}
    if "since" not in given:
        return frontier.now()
    since = whole_number(given, "since", 0, 0, 2**62)
    require_issued(since)
    return since


def _require_existing(who: Identity, given: dict[str, str]) -> None:
    """Refuses what would be waited for in vain: a kind that there is not (400), a tenant that there is not, or that the
    caller does not see (404)."""
    for kind in given["kind"].split(",") if "kind" in given else ():
        if kind not in KINDS:
            message = f"there is no kind '{kind[:50]}'; use {', '.join(KINDS)}"
            raise invalid([FieldError("kind", "unknown_value", message)])
    if "tenant" in given:
        find_tenant(given["tenant"], who)


def _reader(who: Identity, given: dict[str, str]) -> Reader:
    visible = who.visible_tenants()
    kinds = tuple(given["kind"].split(",")) if "kind" in given else None
    return Reader(None if visible is None else tuple(visible), given.get("tenant"), kinds, page_limit(given))


def _reauthorization(request: HttpRequest, header: str, given: dict[str, str]) -> Any:
    """Gives the reader as they are later: with other memberships, or None when logged out or revoked."""
    key = None if header else request.session.session_key
    user_id = request.user.pk or 0

    def ask() -> Reader | None:
        if header:
            who = identity_of_token(header)
            return None if who is None else _reader(who, given)
        user = User.objects.filter(pk=user_id, is_active=True).first()
        is_there = user is not None and key is not None and request.session.exists(key)
        return _reader(identity_of_user(user), given) if user is not None and is_there else None

    return ask


def _streamed(who: Identity, content: AsyncIterator[bytes], media_type: str) -> StreamingHttpResponse:
    # Proxies such as nginx must pass each piece on at once.
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return hub.room.streamed(who.username, content, content_type=media_type, headers=headers)
