"""Django admin for billing: budgets and rates follow the rules of the API."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.core.exceptions import ValidationError
from django.db import transaction
from django.http import HttpRequest
from unfold.admin import ModelAdmin

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.admin import ReadOnly
from gpusched.lib.audit.outdated import CurrentFields
from tenants.billing import budgets, rates
from tenants.models import Budget, Rate


class RateForm(forms.ModelForm):  # type: ignore[type-arg]
    """A form for a new rate. It validates by setting the rate and rolling back."""

    class Meta:
        model = Rate
        fields = ("gpu_model", "price_per_gpu_hour", "starts_at", "ends_at")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "starts_at" in self.fields:
            self.fields["starts_at"].required = False
            self.fields["starts_at"].help_text = "Empty: now"

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            try:
                with transaction.atomic():
                    self.set_rate("")
                    transaction.set_rollback(True)
            except Problem as problem:
                raise ValidationError(problem.detail) from problem
        return cleaned

    def set_rate(self, actor: str) -> int:
        fields = self.cleaned_data
        return rates.set_rate(
            fields["gpu_model"], fields["price_per_gpu_hour"], fields["starts_at"], fields["ends_at"], actor
        )


@admin.register(Rate)
class RateAdmin(ReadOnly):
    form = RateForm
    list_display = ("gpu_model", "price_per_gpu_hour", "starts_at", "ends_at", "created_by")
    list_filter = ("gpu_model",)

    def has_add_permission(self, request: HttpRequest) -> bool:
        return ModelAdmin.has_add_permission(self, request)  # type: ignore[no-any-return]

    def save_model(self, request: HttpRequest, obj: Rate, form: RateForm, change: bool) -> None:
        obj.pk = form.set_rate(request.user.get_username())
        obj.refresh_from_db()


@admin.register(Budget)
class BudgetAdmin(CurrentFields, ModelAdmin):  # type: ignore[misc]
    """Saved by the rules of REST; a budget ends when both its bounds are emptied."""

    list_display = ("tenant", "soft_gpu_hours", "hard_gpu_hours", "days")
    list_select_related = ("tenant",)
    fields = ("tenant", *budgets.FIELDS)

    def get_readonly_fields(self, request: HttpRequest, obj: Budget | None = None) -> tuple[str, ...]:
        return ("tenant",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Budget, form: Any, change: bool) -> None:
        values = {name: getattr(obj, name) for name in budgets.FIELDS}
        budgets.change(obj.tenant_id, values, actor=request.user.get_username())
        obj.pk = Budget.objects.get(tenant_id=obj.tenant_id).pk

    def has_delete_permission(self, request: HttpRequest, obj: Budget | None = None) -> bool:
        return False
