"""Django admin for scheduling: edit the policy, with its history and the effect of the edit."""

from typing import Any

import pghistory
from django.contrib import admin, messages
from django.core.exceptions import ValidationError
from django.db.models import Model
from django.forms import BooleanField
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django_q.admin import ScheduleAdmin
from django_q.models import Schedule
from unfold.admin import ModelAdmin

from gpusched.lib.audit.admin import ReadOnly
from gpusched.lib.audit.outdated import CurrentFields, CurrentForm
from gpusched.lib.json_fields import refuse_undecodable
from scheduling import policy
from scheduling.models import Reservation, SchedulingPolicy, check_costs
from scheduling.whatif import edit_effects


class PolicyForm(CurrentForm):
    """Reject edits without effect. Save an edit that would stop running jobs once the admin has seen its effect."""

    go_ahead = BooleanField(
        required=False, help_text="An edit that would stop running jobs is not saved at once: you see its effect first"
    )
    effect: dict[str, Any]

    class Meta:
        model = SchedulingPolicy
        fields = policy.FIELDS

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        refuse_undecodable(self)

    def clean_cost_by_model(self) -> dict[str, float]:
        """Return no costs for an empty field: all models cost the same. Check the value here: `clean` computes its
        effect before the model's validators run."""
        value = self.cleaned_data["cost_by_model"]
        costs: dict[str, float] = {} if value is None else value
        check_costs(costs)
        return costs

    def clean(self) -> dict[str, Any]:
        policy.lock()
        self.effect = {}
        cleaned = super().clean()
        changed = [name for name in policy.FIELDS if cleaned.get(name) != getattr(self.instance, name)]
        if self.errors or not changed:
            return cleaned
        edited = SchedulingPolicy(**{name: cleaned[name] for name in policy.FIELDS})
        try:
            edited.require_effect(changed)
        except ValidationError as error:
            self.add_error(None, error)
            return cleaned
        self.effect = edit_effects.policy_effect(policy.as_engine(cleaned))
        if self.effect["contradicts"] and not cleaned.get("go_ahead"):
            sentences = "; ".join(self.effect["sentences"])
            self.add_error("go_ahead", f"Not saved yet. With this edit, {sentences}. Tick this box to save it anyway.")
        return cleaned


@admin.register(SchedulingPolicy)
class SchedulingPolicyAdmin(CurrentFields, ModelAdmin):  # type: ignore[misc]
    form = PolicyForm
    fields = (*policy.FIELDS, "go_ahead", "history")
    readonly_fields = ("history",)

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Redirect to the form of the only row, which the first visit creates from the environment."""
        policy.editable_row()
        return HttpResponseRedirect(reverse("admin:scheduling_schedulingpolicy_change", args=[1]))

    @admin.display(description="history")
    def history(self, row: SchedulingPolicy) -> str:
        """Return the latest ten edits: time, actor, changes."""
        edits = [(edit["at"], edit["by"] or "unknown", _changes(edit["changes"])) for edit in policy.history(10)]
        rows = format_html_join("", "<tr><td>{}</td><td>{}</td><td>{}</td></tr>", edits)
        return format_html('<table class="policy-history">{}</table>', rows) if edits else "from the environment"

    def save_model(self, request: HttpRequest, obj: SchedulingPolicy, form: PolicyForm, change: bool) -> None:
        with pghistory.context(actor=request.user.get_username(), via="admin"):
            policy.save(obj)
        for sentence in form.effect.get("sentences", ()):
            messages.info(request, f"{sentence}.")

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def _changes(changes: dict[str, dict[str, Any]]) -> str:
    return "; ".join(f"{name}: {values['from']} → {values['to']}" for name, values in changes.items())


@admin.register(Reservation)
class ReservationAdmin(ReadOnly):
    """Show reservations. Book and change them on the calendar, by the API or by the command."""

    list_display = ("id", "tenant", "user", "state", "gpus", "starts_at", "ends_at", "is_hard", "is_lease", "problem")
    list_filter = ("state", "is_hard", "is_lease", "tenant")
    list_select_related = ("tenant", "user")  # Django's default leaves out keys that can be null
    search_fields = ("note",)


admin.site.unregister(Schedule)


@admin.register(Schedule)
class PlannedTaskAdmin(ReadOnly, ScheduleAdmin):  # type: ignore[misc]
    """Show the tasks of housekeeping, which plans them at its start. In a form, an admin could have the server call any
    function of Python."""
