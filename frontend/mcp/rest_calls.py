"""Calls of the REST API inside this process, as the caller of `/mcp`: the same views, and so the same roles, redaction,
dry runs, idempotency keys and errors."""

from collections.abc import Mapping
from dataclasses import replace
from io import BytesIO
from typing import Any
from urllib.parse import urlencode

import msgspec
from django.contrib.auth.models import User
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse
from django.urls import Resolver404, resolve

from gpusched.lib.api.dry_run import DryRuns
from gpusched.lib.api.problems import not_found
from gpusched.protocol.states import Scope
from jobs.submit.idempotency import IdempotentPosts
from tenants.auth.identity import Identity

_API = "/api/v1/"


class CallFailed(Exception):
    """The API refused the call. `problem` is its RFC 9457 body."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail", "the call failed"))
        self.problem = problem


class RestCalls:
    """The REST API for one caller. Audit log and job events name the channel `mcp` and the token."""

    def __init__(self, request: HttpRequest, identity: Identity) -> None:
        self._request = request
        self.identity = replace(identity, via=f"mcp {identity.token_prefix}")

    def get(self, path: str, **query: object) -> Any:
        """Return the decoded answer. Raise CallFailed."""
        return _decoded(self._send("GET", path, query, None, self.identity))

    def text(self, path: str, **query: object) -> tuple[str, dict[str, str]]:
        """Return a text and its headers. Raise CallFailed."""
        response = self._send("GET", path, query, None, self.identity)
        if response.status_code >= 400:
            raise CallFailed(msgspec.json.decode(response.content))
        return response.content.decode(errors="replace"), dict(response.items())

    def simulate(self, body: object) -> Any:
        """Simulate a submit. It writes nothing, so the scope `read` is enough here, although it is a POST."""
        reader = replace(self.identity, scopes=self.identity.scopes | {Scope.WRITE})
        return _decoded(self._send("POST", "jobs/simulate", {}, body, reader))

    def post(self, path: str, body: object, *, dry_run: bool, key: str = "") -> Any:
        """Write. `dry_run`: only return what the write would return. `key`: repeated with it, nothing more is done."""
        query = {"dry_run": "true"} if dry_run else {}
        return _decoded(self._send("POST", path, query, body, self.identity, key))

    def _send(
        self, method: str, path: str, query: Mapping[str, object], body: object, identity: Identity, key: str = ""
    ) -> HttpResponse:
        raw = b"" if body is None else msgspec.json.encode(body)
        parameters = {name: value for name, value in query.items() if value is not None}
        request: Any = WSGIRequest(
            {
                **{
                    name: value
                    for name, value in self._request.META.items()
                    if name.startswith(("HTTP_", "REMOTE_", "SERVER_"))
                },
                "REQUEST_METHOD": method,
                "PATH_INFO": _API + path,
                "QUERY_STRING": urlencode(parameters),
                "CONTENT_TYPE": "application/json",
                "CONTENT_LENGTH": str(len(raw)),
                "HTTP_ACCEPT": "*/*",
                "HTTP_IDEMPOTENCY_KEY": key,
                "wsgi.input": BytesIO(raw),
            }
        )
        request.user = User(id=identity.user_id, username=identity.username, is_superuser=identity.is_admin)
        request.caller = identity
        try:
            view, args, kwargs = resolve(request.path_info)
        except Resolver404:  # an argument with a character that no id or name has
            raise CallFailed({"code": "not_found", "detail": str(not_found(path))}) from None
        response = _before_view(request, view, args, kwargs) or view(request, *args, **kwargs)
        if hasattr(response, "render"):
            response.render()
        return response


def _before_view(request: HttpRequest, view: Any, args: Any, kwargs: Any) -> HttpResponse | None:
    """Let the two middlewares answer that would do so between a request and its view."""
    for middleware in (DryRuns, IdempotentPosts):
        response = middleware(view).process_view(request, view, args, kwargs)
        if response is not None:
            return response
    return None


def _decoded(response: HttpResponse) -> Any:
    body = msgspec.json.decode(response.content)
    if response.status_code >= 400:
        raise CallFailed(body)
    return body
