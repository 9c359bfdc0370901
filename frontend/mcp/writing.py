"""The tool that writes: first a dry run, then the same call with the confirmation that the dry run returned."""

from enum import StrEnum
from typing import Annotated, Any

from django.conf import settings
from msgspec import Meta

from frontend.mcp import confirmation
from frontend.mcp.rest_calls import RestCalls
from frontend.mcp.tools import Answer, Arguments, Tool
from gpusched.protocol.states import Scope
from tenants.auth.identity import Identity


class Action(StrEnum):
    """The actions of the tool on a job."""

    SUBMIT = "submit"
    CANCEL = "cancel"
    HOLD = "hold"
    RELEASE = "release"
    REQUEUE = "requeue"
    RETRY = "retry"


class ActArguments(Arguments, kw_only=True):
    action: Action
    job_id: Annotated[Annotated[int, Meta(ge=1)] | None, Meta(description="For all actions but submit.")] = None
    request: Annotated[dict[str, Any] | None, Meta(description="For submit: body of POST /api/v1/jobs.")] = None
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
    exact = [arguments.action, arguments.job_id, arguments.request]
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
    if arguments.action == Action.SUBMIT:
        if arguments.request is None or arguments.job_id is not None:
            raise WrongArguments("submit takes `request` and no `job_id`")
        return "jobs", arguments.request
    if arguments.job_id is None or arguments.request is not None:
        raise WrongArguments(f"{arguments.action} takes `job_id` and no `request`")
    return f"jobs/{arguments.job_id}/{arguments.action}", {}


ACT = Tool(
    "act",
    "Submit a job or act on one. The first call is a dry run and returns a confirmation, valid for five minutes. Show"
    " the effect to your user. Only with the user's consent, repeat the call with the same arguments and the"
    " confirmation.",
    ActArguments,
    _act,
)
