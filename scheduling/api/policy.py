"""REST for the scheduling policy: read and edit it, preview an edit, and list edits."""

from typing import Any, Literal, get_type_hints

import msgspec
from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from gpusched.lib.api.dry_run import is_dry_run
from gpusched.lib.api.openapi import documented
from gpusched.lib.api.rest import PAGED, cursor_number, if_match, page_limit, paged, read_body, read_query
from gpusched.protocol.rest.jobs import Page
from gpusched.protocol.rest.scheduling import EditedPolicy, PolicyEdit, PolicyFields
from scheduling import policy
from scheduling.whatif import edit_effects
from tenants.auth.identity import identity

_CHOICES = {
    "policy": Literal["fair", "priority", "cost_aware", "shortest"],
    "thermal_moves": Literal["off", "monitor", "move"],
    "held_idle_policy": Literal["off", "monitor", "enforce"],
}
PolicyChanges = msgspec.defstruct(
    "PolicyChanges",
    [
        (name, kind | msgspec.UnsetType, msgspec.UNSET)
        for name, kind in {**get_type_hints(PolicyFields), **_CHOICES, "version": int}.items()
    ],
    namespace={"__doc__": "The fields to change; absent ones stay. `version`, as read, prevents lost updates."},
    kw_only=True,
    frozen=True,
    forbid_unknown_fields=True,
)


class SchedulingPolicy(APIView):
    @documented("Read the scheduling policy", tag="scheduling", who="anybody", answer=EditedPolicy)
    def get(self, request: Request) -> Response:
        """Its fields are those of the settings (docs/settings.md). `version` 0: values from the environment. With
        `ETag`."""
        identity(request)
        return _answer(policy.values())

    @documented(
        "Change the scheduling policy",
        tag="scheduling",
        who="admin",
        body=PolicyChanges,
        answer=EditedPolicy,
        parameters={"dry_run": "true: return the policy after the edit and its effect, and change nothing"},
        refusals=(400, 401, 403, 412),
    )
    def patch(self, request: Request) -> Response:
        """Changes the fields in the body from the next cycle on. 400 for changes without effect. `If-Match` (or
        `version`) prevents lost updates (412). `dry_run=true` returns the `effect`."""
        caller = identity(request)
        caller.require_admin()
        fields = msgspec.structs.asdict(read_body(request, PolicyChanges))
        changes = {name: value for name, value in fields.items() if value is not msgspec.UNSET}
        version = if_match(request, "the policy", changes.pop("version", None))
        if is_dry_run(request):
            with transaction.atomic():
                new, _ = policy.validated(changes, expected_version=version)
                would_be = {name: getattr(new, name) for name in policy.FIELDS}
            effect = edit_effects.policy_effect(policy.as_engine(would_be))
            version = policy.values()["version"]
            return Response({**would_be, "version": version, "status": "would_be_changed", "effect": effect})
        return _answer(policy.change(changes, actor=caller.username, expected_version=version), status="changed")


class PolicyHistory(APIView):
    @documented(
        "List edits of the scheduling policy, newest first",
        tag="scheduling",
        who="admin",
        answer=Page[PolicyEdit],
        parameters=PAGED,
    )
    def get(self, request: Request) -> Response:
        """`changes` has each field's `from` and `to`."""
        identity(request).require_admin()
        params = read_query(request)
        limit = page_limit(params)
        return Response(paged(policy.history(limit, cursor_number(params, "policy")), limit, "policy", "version"))


def _answer(values: dict[str, Any], **more: str) -> Response:
    answer = {**{name: values[name] for name in (*policy.FIELDS, "version")}, **more}
    return Response(answer, headers={"ETag": f'"{answer["version"]}"'})
