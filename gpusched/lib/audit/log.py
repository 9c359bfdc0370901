"""Keeps who changed what, by which way and from what to what: one row per write, in its transaction, for ever.

Writes of jobs are not here: each has its JobEvent with who did it."""

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

from gpusched.lib.db.sql import as_json, execute
from gpusched.lib.request_id import current_id

MAX_CHARACTERS = 200
# PostgreSQL's name for the way of what is done in a transaction: page, or `token` and its prefix.
VIA = "gpusched.via"


@dataclass(frozen=True)
class Acting:
    """`via`: page, admin, password (of a login), `token` and its prefix, or command; `agent`: the User-Agent."""

    actor: str = "system"
    via: str = "command"
    agent: str = ""


_NOBODY = Acting()
_acting: contextvars.ContextVar[Acting] = contextvars.ContextVar("acting", default=_NOBODY)


def act_as(actor: str, via: str) -> None:
    """Says who does what this request does from now on."""
    _acting.set(Acting(actor, via, _acting.get().agent))


def actor() -> str:
    """Who does what this request does; empty: nobody who is known."""
    return _acting.get().actor


def record(action: str, subject: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
    """Keeps that `subject`, like `quota nlp`, was changed by `action`, like `quota.change`. Of `before` and `after`
    only what differs is kept; None: it was not there. To be called in the transaction of the change."""
    old, new = _differing(before, after)
    by = _acting.get()
    execute(
        "INSERT INTO lib_auditentry (at, actor, via, agent, request_id, action, subject, before, after)"
        " VALUES (now(), %s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb)",
        [by.actor, by.via, by.agent, current_id(), action, subject[:MAX_CHARACTERS], as_json(old), as_json(new)],
    )


def _differing(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]:
    if before is None or after is None:
        return before, after
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    return {name: before.get(name) for name in names}, {name: after.get(name) for name in names}


@sync_only_middleware
def current_actor(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """Each request begins with nobody: threads serve one after the other. After the session has been read."""

    def middleware(request: HttpRequest) -> HttpResponse:
        agent = request.headers.get("User-Agent", "")[:MAX_CHARACTERS].replace("\x00", "")
        _acting.set(Acting("", "", agent))
        if request.path.startswith("/admin/") and request.method == "POST":
            act_as(request.user.get_username(), "admin")
        return get_response(request)

    return middleware
