"""Scheduling cycles in Django admin: to look at."""

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from scheduling.models import Cycle


@admin.register(Cycle)
class CycleAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("started_at", "trigger", "worker", "pending", "placed", "snapshot_ms", "plan_ms", "commit_ms")
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False
