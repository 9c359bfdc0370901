"""Nodes and devices in Django admin. Values from agents are read-only; intent, labels and taints are not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from unfold.admin import TabularInline

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.admin import Audited, ReadOnly
from gpusched.protocol.affinity import MAX_TAINTS, Taint, taint_problems, taint_text
from gpusched.protocol.labels import LABEL_RULE, MAX_LABELS, is_label, is_value
from gpusched.protocol.states import NodeIntent
from nodes.health import cordon, device_health
from nodes.inventory import retire
from nodes.models import Device, Incident, Node

T = TypeVar("T")


class DeviceInline(TabularInline):  # type: ignore[misc]
    model = Device
    fields = readonly_fields = ("index", "model", "memory_mb", "uuid", "health", "health_note", "held_whole", "held_mb")
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


class NodeForm(ModelForm):  # type: ignore[type-arg]
    """Reject labels and taints that the scheduler cannot read."""

    def clean_admin_labels(self) -> dict[str, str]:
        labels = self._read("admin_labels", dict[str, str])
        if len(labels) > MAX_LABELS or not all(is_label(key) and is_value(value) for key, value in labels.items()):
            raise ValidationError(f"at most {MAX_LABELS} labels of {LABEL_RULE}")
        return labels

    def clean_taints(self) -> list[dict[str, str]]:
        taints = self._read("taints", list[Taint])
        for taint in taints:
            for problem in taint_problems(taint):
                raise ValidationError(f"{taint_text(taint)}: {problem}")
        if len({(taint.key, taint.effect) for taint in taints}) < len(taints) or len(taints) > MAX_TAINTS:
            raise ValidationError(f"at most {MAX_TAINTS} taints, and one per key and effect")
        plain: list[dict[str, str]] = msgspec.to_builtins(taints)
        return plain

    def _read(self, name: str, kind: type[T]) -> T:
        try:
            return msgspec.convert(self.cleaned_data[name], kind)
        except msgspec.ValidationError as error:
            raise ValidationError(str(error)) from error


@admin.register(Node)
class NodeAdmin(Audited):
    form = NodeForm
    list_display = ("name", "state", "intent", "pretend", "cpu_cores", "memory_mb", "last_seen_at")
    list_filter = ("state", "intent", "pretend")
    search_fields = ("name",)
    fields = ("name", "state", "intent", "intent_note", "labels", "admin_labels", "taints", "pretend",
              "cpu_cores", "memory_mb", "boot_id",
              "agent_version", "driver_version", "joined_at", "last_seen_at")  # fmt: skip
    readonly_fields = tuple(name for name in fields if name not in ("intent", "intent_note", "admin_labels", "taints"))
    inlines = (DeviceInline,)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        """Leave out removed nodes."""
        queryset: QuerySet[Node] = super().get_queryset(request).filter(removed_at=None)
        return queryset

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse: nodes are removed on their pages, which keeps their history."""
        return False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Refuse: nodes join through their agents."""
        return False

    def save_model(self, request: HttpRequest, obj: Node, form: ModelForm[Any], change: bool) -> None:
        obj.save(update_fields=["admin_labels", "taints"])
        cordon.set_intent(obj.name, NodeIntent(obj.intent), obj.intent_note)

    def view_on_site(self, obj: Node) -> str:
        return "/nodes/"


@admin.register(Device)
class DeviceAdmin(ReadOnly):
    list_display = ("node", "index", "model", "health", "health_note", "held_whole", "held_mb")
    list_filter = ("health", "model")
    search_fields = ("node__name", "uuid")
    list_select_related = ("node",)
    actions = ("quarantine", "clear", "retire")

    def has_act_permission(self, request: HttpRequest) -> bool:
        return bool(request.user.is_superuser)

    @admin.action(description="Quarantine: start no new jobs on them until they are cleared", permissions=["act"])
    def quarantine(self, request: HttpRequest, chosen: QuerySet[Device]) -> None:
        actor = request.user.get_username()
        for device in chosen:
            self._do(request, partial(device_health.quarantine, device.pk, "", actor))

    @admin.action(description="Clear: restore the health that their readings show", permissions=["act"])
    def clear(self, request: HttpRequest, chosen: QuerySet[Device]) -> None:
        for device in chosen:
            self._do(request, partial(device_health.clear, device.pk))

    @admin.action(description="Retire: remove devices that are permanently gone", permissions=["act"])
    def retire(self, request: HttpRequest, chosen: QuerySet[Device]) -> None:
        for device in chosen:
            self._do(request, partial(retire.retire, device.pk))

    def _do(self, request: HttpRequest, action: Callable[[], str]) -> None:
        try:
            with transaction.atomic():
                self.message_user(request, action())
        except Problem as problem:
            self.message_user(request, problem.detail, messages.WARNING)


@admin.register(Incident)
class IncidentAdmin(ReadOnly):
    list_display = ("kind", "node", "device", "cause", "since", "until")
    list_filter = ("kind",)
    search_fields = ("node__name", "cause")
    list_select_related = ("node", "device__node")
