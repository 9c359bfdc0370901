"""REST for the health of devices: quarantine, clear, retire, and incidents."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.problems import invalid, still_there
from gpusched.lib.api.rest import PAGED, cursor_number, is_true, page_limit, paged, read_body, read_query
from gpusched.lib.db.sql import query, retry_atomic
from gpusched.protocol.job_request import FieldError
from gpusched.protocol.rest.cluster import DeviceAction
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.records import Incident
from nodes.health import device_health, incidents
from nodes.inventory import retire
from tenants.auth.identity import identity


class QuarantineNote(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    note: str = ""


class Quarantine(APIView):
    @documented(
        "Quarantine a device: start no new jobs on it until it is cleared",
        tag="nodes",
        who="admin",
        body=QuarantineNote,
        answer=DeviceAction,
    )
    def post(self, request: Request, device_id: int) -> Response:
        """Holds whatever its readings show. Running jobs may end."""
        caller = identity(request)
        caller.require_admin()
        note = read_body(request, QuarantineNote).note
        if "\x00" in note:
            raise invalid([FieldError("note", "invalid_character", "must not contain a NUL character")])
        return _answer(device_id, retry_atomic(lambda: device_health.quarantine(int(device_id), note, caller.username)))


class Clear(APIView):
    @documented(
        "Clear a device: restore the health that its readings show",
        tag="nodes",
        who="admin",
        answer=DeviceAction,
        refusals=(400, 401, 403, 404, 409),
    )
    def post(self, request: Request, device_id: int) -> Response:
        """409 if the device is in service."""
        identity(request).require_admin()
        return _answer(device_id, retry_atomic(lambda: device_health.clear(int(device_id))))


class Retire(APIView):
    @documented(
        "Retire a device that is permanently gone",
        tag="nodes",
        who="admin",
        answer=DeviceAction,
        refusals=(400, 401, 403, 404, 409),
    )
    def post(self, request: Request, device_id: int) -> Response:
        """Deletes its readings and samples; the ledger and its incidents stay. 409 while a job holds it or its agent
        reads it. It comes back by itself if the agent reports it again."""
        identity(request).require_admin()
        message = retry_atomic(lambda: retire.retire(int(device_id)))
        return Response({"id": int(device_id), "health": "retired", "health_note": "", "message": message})


_FILTERS = {"open": "true: only open incidents", **PAGED}


class Incidents(APIView):
    @documented(
        "List incidents of nodes and devices, newest first",
        tag="nodes",
        who="admin",
        answer=Page[Incident],
        parameters=_FILTERS,
    )
    def get(self, request: Request) -> Response:
        """`gpu` is the index of the GPU, null for the node. `until` is null while open. `kind` is a device's health, or
        `node_lost`, `cordoned`, `draining`, `would_move`."""
        identity(request).require_admin()
        params = read_query(request)
        limit = page_limit(params)
        rows = incidents.latest(limit, cursor_number(params, "incidents"), is_open=is_true(params, "open"))
        return Response(paged(rows, limit, "incidents"))


def _answer(device_id: int, message: str) -> Response:
    rows = query("SELECT health, health_note FROM nodes_device WHERE id = %s", [device_id])
    return Response({"id": int(device_id), **still_there(rows, f"GPU {device_id}"), "message": message})
