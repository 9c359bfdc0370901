"""Django admin for routes and deliveries: who gets messages, which routes fail, and turning them on and off.

Targets and their secrets are never shown. Owners set them on the page Notifications or by the API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db import transaction
from django.db.models import QuerySet
from django.forms import ModelForm
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from unfold.admin import ModelAdmin
from unfold.decorators import action

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.admin import ReadOnly
from notifications import routes
from notifications.models import Delivery, Route
from tenants.auth.identity import Identity, identity

_SHOWN = (
    "owner", "channel", "name", "target_shown", "kinds", "time_zone", "quiet_from", "quiet_until", "digest_minutes",
    "problem", "failing_since", "last_sent_at", "created_by", "created_at", "deliveries",
)  # fmt: skip


class Failing(admin.SimpleListFilter):
    """Filter by whether the latest message was sent."""

    title = "state"
    parameter_name = "failing"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("yes", "Failing"), ("no", "Works")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Route]) -> QuerySet[Route]:
        if self.value() == "yes":
            return queryset.exclude(problem="")
        return queryset.filter(problem="") if self.value() == "no" else queryset


@admin.register(Route)
class RouteAdmin(ModelAdmin):  # type: ignore[misc]
    """The routes and webhooks of all tenants and users. Only `is_enabled` can be edited here."""

    list_display = ("name", "owner", "channel", "target_shown", "is_enabled", "problem", "last_sent_at", "deliveries")
    list_filter = ("is_enabled", Failing, "channel", "tenant")
    list_select_related = ("tenant", "user")
    search_fields = ("name", "target_shown", "tenant__name", "user__username")
    ordering = ("-id",)
    fields = ("is_enabled", *_SHOWN)
    readonly_fields = _SHOWN
    actions = ("enable", "disable", "send_tests")
    actions_submit_line = ("save_and_send_test",)

    @admin.display(description="owner")
    def owner(self, route: Route) -> str:
        return f"tenant {route.tenant.name}" if route.tenant else f"user {route.user}"

    @admin.display(description="deliveries")
    def deliveries(self, route: Route) -> str:
        address = reverse("admin:notifications_delivery_changelist")
        return format_html('<a href="{}?route__id__exact={}">deliveries</a>', address, route.pk)

    @admin.action(description="Enable selected routes", permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Route]) -> None:
        _for_each(request, queryset, "enabled", lambda route, caller: _switch(route, caller, is_enabled=True))

    @admin.action(description="Disable selected routes", permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Route]) -> None:
        _for_each(request, queryset, "disabled", lambda route, caller: _switch(route, caller, is_enabled=False))

    @admin.action(description="Send a test message to selected routes", permissions=["change"])
    def send_tests(self, request: HttpRequest, queryset: QuerySet[Route]) -> None:
        _for_each(request, queryset, "sent a test message", routes.send_test_locked)

    @action(description="Save and send a test message", permissions=["change"])  # type: ignore[untyped-decorator]
    def save_and_send_test(self, request: HttpRequest, obj: Route) -> None:
        self.send_tests(request, Route.objects.filter(pk=obj.pk))

    def save_model(self, request: HttpRequest, obj: Route, form: ModelForm[Route], change: bool) -> None:
        """Change the one field that can be edited, as the API does, and then act on the pressed button. The inherited
        method would write the whole row, over what a sender writes meanwhile."""
        if "is_enabled" in form.changed_data:
            _switch(routes.lock(obj.pk), identity(request), is_enabled=obj.is_enabled)
        for button in self.get_actions_submit_line(request, obj.pk):
            if button.action_name in request.POST:
                button.method(request, obj)

    def delete_model(self, request: HttpRequest, obj: Route) -> None:
        with transaction.atomic():
            routes.delete_locked(routes.lock(obj.pk))

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Route]) -> None:
        with transaction.atomic():
            for route in queryset:
                routes.delete_locked(routes.lock(route.pk))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Show the routes alone: their deliveries go with them, without a permission of their own."""
        names = [routes.subject(route) for route in objs]
        return names, {Route._meta.verbose_name_plural: len(names)}, set(), []

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False


def _switch(route: Route, caller: Identity, *, is_enabled: bool) -> None:
    if route.is_enabled != is_enabled:
        routes.change_locked(route, {"is_enabled": is_enabled}, caller)


def _for_each(
    request: HttpRequest, queryset: QuerySet[Route], done: str, act: Callable[[Route, Identity], object]
) -> None:
    """Act on each route in a transaction of its own, and report what was done and what was refused."""
    caller, number = identity(request), 0
    for pk in queryset.order_by("pk").values_list("pk", flat=True):
        try:
            with transaction.atomic():
                act(routes.lock(pk), caller)
            number += 1
        except Problem as problem:
            messages.error(request, f"{problem.detail}; {problem.next_step}" if problem.next_step else problem.detail)
    if number:
        messages.success(request, f"{number} route{'s' if number > 1 else ''} {done}.")


@admin.register(Delivery)
class DeliveryAdmin(ReadOnly):
    """Show what was sent to which route, and why it failed. Replay deliveries on the page Notifications."""

    list_display = (
        "id", "route", "kind", "state", "attempts", "status_code", "error", "created_at", "next_at", "ended_at",
    )  # fmt: skip
    list_filter = ("state", "route__channel", "notice__kind", "route__tenant")
    list_select_related = ("route", "notice")
    fields = (*list_display, "uid", "is_urgent", "expires_at")
    ordering = ("-id",)
    show_full_result_count = False

    @admin.display(description="kind")
    def kind(self, delivery: Delivery) -> str:
        return delivery.notice.kind
