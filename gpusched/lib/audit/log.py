"""The audit log: actor, channel, and values before and after, one row per write, in its transaction, kept forever.

Writes of jobs are not included: each has a JobEvent with its actor."""

import contextvars
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.utils.decorators import sync_only_middleware

from gpusched.lib.db.sql import as_json, execute
from gpusched.lib.request_id import current_id

MAX_CHARACTERS = 200
# The PostgreSQL setting for the channel of a transaction: page, or `token` and its prefix.
VIA = "gpusched.via"


@dataclass(frozen=True)
class Acting:
    """The actor of a request. `via`: page, admin, password (login), `token` or `mcp` and the
    token's prefix, or command. `agent`: the
    User-Agent."""

    actor: str = "system"
    via: str = "command"
    agent: str = ""


_NO_ACTOR = Acting()
_acting: contextvars.ContextVar[Acting] = contextvars.ContextVar("acting", default=_NO_ACTOR)


def act_as(actor: str, via: str) -> None:
    """Set the actor of this request from now on."""
    _acting.set(Acting(actor, via, _acting.get().agent))


def actor() -> str:
    """Return the actor of this request; empty if there is none."""
    return _acting.get().actor


def record(action: str, subject: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> None:
    """Record that `action`, like `quota.change`, changed `subject`, like `quota nlp`. Only the differences between
    `before` and `after` are stored; None: it did not exist. Call it in the transaction of the change."""
    old, new = _differing(before, after)
    acting = _acting.get()
    execute(
        "INSERT INTO lib_auditentry (at, actor, via, agent, request_id, action, subject, before, after)"
        " VALUES (now(), %s, %s, %s, %s, %s, %s, %s::jsonb, %s::jsonb)",
        [
            acting.actor,
            acting.via,
            acting.agent,
            current_id(),
            action,
            subject[:MAX_CHARACTERS],
            as_json(old),
            as_json(new),
        ],
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
    """Give each request an actor of its own: threads serve many. It comes after the session's middleware."""

    def middleware(request: HttpRequest) -> HttpResponse:
        agent = request.headers.get("User-Agent", "")[:MAX_CHARACTERS].replace("\x00", "")
        before = _acting.set(Acting("", "", agent))
        try:
            if request.path.startswith("/admin/") and request.method == "POST":
                act_as(request.user.get_username(), "admin")
            return get_response(request)
        finally:
            _acting.reset(before)

    return middleware
