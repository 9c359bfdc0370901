"""Django admin for endpoints: their limits, changed by the rules of the API."""

from __future__ import annotations

from typing import Any, cast

from django.contrib import admin
from django.contrib.auth.models import User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.admin import ReadOnly
from gpusched.lib.audit.outdated import CurrentFields, CurrentForm
from serving.endpoints import endpoints
from serving.models import Endpoint
from tenants.auth.identity import Identity, identity_of_user

LIMITS = (
    "cost", "max_batch", "max_wait_ms", "memory_per_request_mb", "max_queue", "timeout_seconds", "min_replicas",
    "max_replicas", "idle_seconds", "prewarming", "warm_up_seconds",
)  # fmt: skip


class EndpointForm(CurrentForm):
    """A form for the limits of an endpoint. It validates by changing the endpoint and rolling back."""

    identity: Identity

    class Meta:
        model = Endpoint
        fields = LIMITS

    def clean(self) -> dict[str, Any]:
        """Report what the API would refuse."""
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                with transaction.atomic():
                    self.change_limits()
                    transaction.set_rollback(True)
            except Problem as problem:
                raise ValidationError(problem.detail) from problem
        return cleaned

    def change_limits(self) -> None:
        """Change the edited fields."""
        changes = {name: self.cleaned_data[name] for name in self.changed_data}
        if changes:
            endpoints.change(self.instance.pk, changes, self.identity)


@admin.register(Endpoint)
class EndpointAdmin(CurrentFields, ReadOnly):
    """Edit the limits of endpoints. Other fields, new endpoints and their end: by the API, the SDK or the command."""

    form = EndpointForm
    list_display = ("name", "tenant", "owner", "state", "type", "protocol", "min_replicas", "max_replicas", "problem")
    list_filter = ("state", "tenant")
    list_select_related = ("tenant", "owner")
    search_fields = ("name",)
    readonly_fields = (
        "name", "tenant", "owner", "state", "type", "protocol", "port", "template", "warm_up", "allowed_users",
        "seconds_per_cost", "cold_start_seconds", "problem", "version", "created_at",
    )  # fmt: skip
    fields = (*readonly_fields[:10], *LIMITS, *readonly_fields[10:])

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return obj is None or obj.state != "removed"

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kwargs: Any) -> Any:
        """Return the form class with the identity of the admin."""
        form = super().get_form(request, obj, change=change, **kwargs)
        form.identity = identity_of_user(cast(User, request.user))
        return form

    def save_model(self, request: HttpRequest, obj: Endpoint, form: EndpointForm, change: bool) -> None:
        form.change_limits()
        obj.refresh_from_db()
