"""Nodes and devices in Django admin: what agents report is read-only, an admin's intent and labels are not."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.forms import ModelForm
from django.http import HttpRequest
from unfold.admin import ModelAdmin, TabularInline

from gpusched.protocol.states import NodeIntent
from nodes import services
from nodes.models import Device, Node


class DeviceInline(TabularInline):  # type: ignore[misc]
    model = Device
    fields = readonly_fields = ("index", "model", "memory_mb", "uuid", "health", "is_slowed", "held_whole", "held_mb")
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


@admin.register(Node)
class NodeAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("name", "state", "intent", "pretend", "cpu_cores", "memory_mb", "last_seen_at")
    list_filter = ("state", "intent", "pretend")
    search_fields = ("name",)
    fields = ("name", "state", "intent", "intent_note", "labels", "pretend", "cpu_cores", "memory_mb", "boot_id",
              "agent_version", "driver_version", "joined_at", "last_seen_at")  # fmt: skip
    readonly_fields = tuple(name for name in fields if name not in ("intent", "intent_note", "labels"))
    inlines = (DeviceInline,)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Nodes join by their agents."""
        return False

    def save_model(self, request: HttpRequest, obj: Node, form: ModelForm[Any], change: bool) -> None:
        obj.save(update_fields=["labels"])
        services.set_intent(obj.name, NodeIntent(obj.intent), obj.intent_note)

    def view_on_site(self, obj: Node) -> str:
        return "/nodes/"
