"""Jobs in Django admin, read-only: actions go through the page or the API, which apply the rules."""

from django.contrib import admin

from gpusched.lib.audit.admin import ReadOnly
from jobs.models import Job


@admin.register(Job)
class JobAdmin(ReadOnly):
    list_display = ("id", "name", "tenant", "user", "state", "reason", "gpu_count", "priority", "submitted_at")
    list_filter = ("state", "tenant")
    search_fields = ("name",)
    ordering = ("-id",)
    list_select_related = ("tenant", "user")
    show_full_result_count = False

    def view_on_site(self, obj: Job) -> str:
        return f"/jobs/{obj.pk}/"
