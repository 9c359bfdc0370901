"""REST for labels and taints of nodes."""

import msgspec
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import read_body
from gpusched.protocol.affinity import Taint
from gpusched.protocol.rest.cluster import NodeLabels, NodeTaints
from nodes.inventory import labels
from tenants.auth.identity import identity


class LabelChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Label values to set; null removes the label."""

    labels: dict[str, str | None]


class Labels(APIView):
    @documented("Read the labels of a node", tag="nodes", who="anybody", answer=NodeLabels)
    def get(self, request: Request, name: str) -> Response:
        """`from_admin` and `from_agent` are the two sources. If both set a label, `labels` has the admin's value."""
        identity(request)
        return Response(labels.labels_of(name))

    @documented("Set or remove labels of a node", tag="nodes", who="admin", body=LabelChanges, answer=NodeLabels)
    def patch(self, request: Request, name: str) -> Response:
        """A value of null removes a label; other labels stay. Reports of the agent do not change them."""
        identity(request).require_admin()
        return Response(labels.change_labels(name, read_body(request, LabelChanges).labels))


class TaintChanges(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """`remove`: `KEY` or `KEY:EFFECT`, applied first. An added taint replaces the one with its key and effect."""

    add: list[Taint] = []
    remove: list[str] = []


class Taints(APIView):
    @documented("Read the taints of a node", tag="nodes", who="anybody", answer=NodeTaints)
    def get(self, request: Request, name: str) -> Response:
        """Jobs without a matching toleration do not start there."""
        identity(request)
        return Response(labels.taints_of(name))

    @documented("Add or remove taints of a node", tag="nodes", who="admin", body=TaintChanges, answer=NodeTaints)
    def patch(self, request: Request, name: str) -> Response:
        """Running jobs continue, whatever they tolerate."""
        identity(request).require_admin()
        changes = read_body(request, TaintChanges)
        return Response(labels.change_taints(name, changes.add, changes.remove))
