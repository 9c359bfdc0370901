"""REST for nodes: list, read, cordon, uncordon, drain, remove, and join tokens."""

from typing import Any

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid
from gpusched.lib.api.rest import read_body
from gpusched.lib.db.sql import retry_atomic
from gpusched.lib.times import rfc3339
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.access import JoinToken
from gpusched.protocol.rest.cluster import Node, NodeAction, NodeDevice
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.states import NodeIntent
from nodes import not_found
from nodes.health import cordon
from nodes.inventory import join, removal, representation, rotation
from tenants.auth.identity import identity


class Nodes(APIView):
    @documented("List nodes with their devices and latest readings", tag="nodes", who="anybody", answer=Page[Node])
    def get(self, request: Request) -> Response:
        """Not paged."""
        return Response({"items": representation.nodes(identity(request).visible_tenants()), "next_cursor": None})


class OneNode(APIView):
    @documented("Read a node", tag="nodes", who="anybody", answer=Node)
    def get(self, request: Request, name: str) -> Response:
        """`clock_off_seconds`: how far its clock is ahead of the server's, null if unknown. `isolation`: how it
        isolates jobs. `missing_users`: Unix users that it lacked when jobs were to start. `hints`, for admins: problems
        that its agent finds on the machine (docs/agent.md)."""
        nodes = representation.nodes(identity(request).visible_tenants(), name) if "\x00" not in name else []
        if not nodes:
            raise not_found.absent(name)
        return Response(nodes[0])

    @documented("Remove a node permanently", tag="nodes", who="admin", answer=NodeAction, refusals=(401, 403, 404, 409))
    def delete(self, request: Request, name: str) -> Response:
        """The node must be lost, cordoned or drained, and have no jobs left. Lists no longer include it; jobs,
        attempts, the ledger and incidents still name it. Its agent is refused, and its name can be joined again."""
        identity(request).require_admin()
        if "\x00" in name:
            raise not_found.absent(name)
        message = retry_atomic(lambda: removal.remove(name))
        return Response({"node": name, "status": "removed", "message": message})


class Gpus(APIView):
    @documented("List devices", tag="nodes", who="anybody", answer=Page[NodeDevice])
    def get(self, request: Request) -> Response:
        """Each device has its `node`. Not paged."""
        nodes = representation.nodes(identity(request).visible_tenants())
        items = [{"node": node["name"], **device} for node in nodes for device in node["devices"]]
        return Response({"items": items, "next_cursor": None})


class IntentNote(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    note: str = ""


def _intent(verb: str, intent: NodeIntent, summary: str) -> type[APIView]:
    class Intent(APIView):
        @documented(summary, tag="nodes", who="admin", body=IntentNote, answer=NodeAction, operation_id=f"nodes_{verb}")
        def post(self, request: Request, name: str) -> Response:
            identity(request).require_admin()
            note = read_body(request, IntentNote).note
            if "\x00" in note + name:
                raise invalid([FieldError("note", "invalid_character", "must not contain a NUL character")])
            message = cordon.set_intent(name, intent, note)
            return Response({"node": name, "status": intent, "message": message})

    Intent.__name__ = verb.capitalize()
    return Intent


Cordon = _intent("cordon", NodeIntent.CORDONED, "Cordon a node: start no new jobs on it; notes up to 200 characters")
Uncordon = _intent("uncordon", NodeIntent.OPEN, "Uncordon a node: start jobs on it again")
Drain = _intent("drain", NodeIntent.DRAINING, "Drain a node: start no new jobs on it; running jobs continue")


class RotateCredential(APIView):
    @documented("Ask the agent of a node for a new credential", tag="nodes", who="admin", answer=NodeAction)
    def post(self, request: Request, name: str) -> Response:
        """Its jobs continue. The old credential is valid until the new one is used; `credential_at` of the node then
        changes."""
        identity(request).require_admin()
        if "\x00" in name:
            raise not_found.absent(name)
        return Response({"node": name, "status": "asked", "message": rotation.ask(name)})


class NewJoinToken(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    expires_in_hours: float = 24.0


class JoinTokens(APIView):
    @documented(
        "Create a join token for nodes",
        tag="nodes",
        who="admin",
        body=NewJoinToken,
        answer=JoinToken,
        status=201,
        has_dry_run=False,
    )
    def post(self, request: Request) -> Response:
        """Valid for at most 8760 hours. Any number of nodes can join with it."""
        caller = identity(request)
        caller.require_admin()
        hours = read_body(request, NewJoinToken).expires_in_hours
        if not 0 < hours <= 8760:
            raise invalid([FieldError("expires_in_hours", "out_of_range", "more than 0, at most 8760")])
        token, text = join.create_join_token(hours, caller.username)
        url = request.build_absolute_uri("/").rstrip("/")
        answer: dict[str, Any] = {"token": text, "expires_at": rfc3339(token.expires_at)}
        return Response({**answer, "command": join.join_command(url, text)}, status=201)
