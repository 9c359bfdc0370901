"""The tool that writes: first a dry run, then the same call with the confirmation that the dry run returned."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from django.conf import settings
from msgspec import Meta

from frontend.mcp import confirmation
from frontend.mcp.rest_calls import RestCalls
from frontend.mcp.tools import Answer, Arguments, Tool
from gpusched.protocol.states import Scope
from tenants.auth.identity import Identity


class Action(StrEnum):
    """The actions of the tool, on jobs and reservations."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    RETRY = "retry"
    EXTEND = "extend"
    RESERVE = "reserve"
    RENEW_RESERVATION = "renew_reservation"
    SHORTEN_RESERVATION = "shorten_reservation"
    CANCEL_RESERVATION = "cancel_reservation"


@dataclass(frozen=True)
class _Write:
    """The REST call of an action. `of`: the argument with the id in its path. `request`: whether it has a body."""

    path: str
    of: Literal["", "job_id", "reservation_id"] = ""
    request: bool = False


_WRITES = {
    Action.SUBMIT: _Write("jobs", request=True),
    **{
        action: _Write(f"jobs/{{}}/{action}", "job_id")
        for action in (Action.CANCEL, Action.HOLD, Action.RELEASE, Action.REQUEUE, Action.RETRY)
    },
    Action.EXTEND: _Write("jobs/{}/extend", "job_id", request=True),
    Action.RESERVE: _Write("reservations", request=True),
    Action.RENEW_RESERVATION: _Write("reservations/{}/renew", "reservation_id", request=True),
    Action.SHORTEN_RESERVATION: _Write("reservations/{}/shorten", "reservation_id"),
    Action.CANCEL_RESERVATION: _Write("reservations/{}/cancel", "reservation_id"),
}
_Id = Annotated[int, Meta(ge=1)]


class ActArguments(Arguments, kw_only=True):
    action: Action
    job_id: Annotated[_Id | None, Meta(description="For actions on a job.")] = None
    reservation_id: Annotated[_Id | None, Meta(description="For …_reservation.")] = None
    request: Annotated[
        dict[str, Any] | None,
        Meta(
            description="Body of the REST call. submit: as for simulate. reserve: gpus, from (default now), for_seconds"
            " or until, tenant, gpu_model, kind (hard or soft), note. renew_reservation: for_seconds. extend:"
            " add_minutes or max_runtime_minutes."
        ),
    ] = None
    confirmation: Annotated[str, Meta(description="From the dry run; empty: make a dry run.")] = ""


class WrongArguments(ValueError):
    """Arguments that do not belong to the action, as a sentence."""


def may_write(identity: Identity) -> bool:
    """Return whether both the server's setting and the caller's token allow writes."""
    return settings.ENV.mcp_writes and Scope.WRITE in identity.scopes


def _act(rest: RestCalls, arguments: ActArguments) -> Answer:
    if not may_write(rest.identity):  # the list of tools leaves it out, but a client can call it anyway
        raise confirmation.NotConfirmed(
            "writes by AI agents need GPUSCHED_MCP_WRITES=true on the server, and a token with the scope write"
        )
    path, body = _call(arguments)
    caller = str(rest.identity.token_prefix or rest.identity.via)
    exact = [arguments.action, arguments.job_id, arguments.reservation_id, arguments.request]
    if not arguments.confirmation:
        answer = rest.post(path, body, dry_run=True)
        return {
            "done": False,
            "would_answer": answer,
            "confirmation": confirmation.create(caller, exact),
            "valid_seconds": confirmation.VALID_SECONDS,
        }
    confirmation.require(arguments.confirmation, caller, exact)
    # As a key, the confirmation keeps a repeated call from a second effect.
    return {"done": True, "answer": rest.post(path, body, dry_run=False, key=arguments.confirmation)}


def _call(arguments: ActArguments) -> tuple[str, dict[str, Any]]:
    """Return path and body of the REST call. Raise WrongArguments."""
    write = _WRITES[arguments.action]
    needed = {write.of, "request" if write.request else ""} - {""}
    given = {name for name in ("job_id", "reservation_id", "request") if getattr(arguments, name) is not None}
    if given != needed:
        names = " and ".join(f"`{name}`" for name in sorted(needed))
        raise WrongArguments(f"{arguments.action} takes {names}, and no other argument but `confirmation`")
    body = dict(arguments.request or {})
    if arguments.action == Action.RESERVE:
        body["source"] = "agent"  # as the calendar shows it
    return write.path.format(getattr(arguments, write.of) if write.of else ""), body


ACT = Tool(
    "act",
    "Submit a job, book a reservation, or act on one. The first call is a dry run and returns a confirmation, valid for"
    " five minutes. Show the effect to your user. Only with the user's consent, repeat the call with the same arguments"
    " and the confirmation.",
    ActArguments,
    _act,
)
