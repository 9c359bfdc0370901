"""Jobs in Django admin: to look at. What is done to jobs goes through the page or the API, never around their rules."""

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from jobs.models import Job


@admin.register(Job)
class JobAdmin(ModelAdmin):  # type: ignore[misc]
    list_display = ("id", "name", "tenant", "user", "state", "reason", "gpu_count", "priority", "submitted_at")
    list_filter = ("state", "tenant")
    search_fields = ("name",)
    ordering = ("-id",)
    list_select_related = ("tenant", "user")
    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def view_on_site(self, obj: Job) -> str:
        return f"/jobs/{obj.pk}/"
