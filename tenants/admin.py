"""Django admin for tenants, quotas, members and tokens. Every edit is recorded with its actor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import pghistory
from django.contrib import admin, messages
from django.contrib.auth.admin import GroupAdmin as PlainGroupAdmin
from django.contrib.auth.admin import UserAdmin as PlainUserAdmin
from django.contrib.auth.models import Group, User
from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Model, QuerySet
from django.forms import BaseInlineFormSet, BooleanField, HiddenInput, IntegerField, ModelForm
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path, reverse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from unfold.admin import StackedInline, TabularInline
from unfold.forms import AdminPasswordChangeForm, UserChangeForm, UserCreationForm

from gpusched.lib.api.problems import Problem
from gpusched.lib.audit.admin import Audited
from gpusched.lib.audit.outdated import CurrentFields, CurrentForm
from gpusched.lib.hooks import hook
from gpusched.lib.json_fields import refuse_undecodable
from gpusched.lib.web.autocompletion import KeyFields
from gpusched.protocol.states import Role
from tenants import bucket_admin  # noqa: F401 - registers token buckets
from tenants.auth import tokens
from tenants.billing import admin as billing_admin  # noqa: F401 - registers the tables of billing
from tenants.models import ApiToken, Membership, Quota, Tenant, UsageBalance, check_model_limits
from tenants.people import members, users
from tenants.tenancy import tenants
from tenants.tenancy.tenants import NO_EFFECT

admin.site.site_header = "gpusched"
admin.site.site_title = "gpusched admin"
admin.site.index_title = "Raw editor"
admin.site.site_url = "/"
admin.site.unregister(User)
admin.site.unregister(Group)


class UserForm(UserChangeForm, CurrentForm):  # type: ignore[misc]
    """Protect the last admin, as the API does."""

    def clean(self) -> dict[str, Any]:
        users.lock_admins(self.instance)
        cleaned: dict[str, Any] = super().clean() or self.cleaned_data
        user = User.objects.get(pk=self.instance.pk)
        stays = cleaned.get("is_superuser", user.is_superuser) and cleaned.get("is_active", user.is_active)
        if user.is_superuser and user.is_active and not stays:
            try:
                users.require_another_admin(user)
            except Problem as problem:
                self.add_error(None, f"Not saved: {problem.detail}.")
        return cleaned


class KeptWithJobs(Audited):
    """An admin page of users or tenants, which cannot be deleted while jobs name them."""

    def get_deleted_objects(self, objs: Iterable[Any], request: HttpRequest) -> Any:
        """Show the jobs of each in one line. Django lists them all: 100,000 jobs take 12 s."""
        jobs = [f"the jobs of {obj}" for obj in objs if obj.jobs.exists()]
        return ([], {}, set(), jobs) if jobs else super().get_deleted_objects(objs, request)


@admin.register(User)
class UserAdmin(PlainUserAdmin, KeptWithJobs):  # type: ignore[misc,type-arg]
    form = UserForm
    readonly_fields = ("last_login",)
    add_form = UserCreationForm
    change_password_form = AdminPasswordChangeForm

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Refuse to delete admins, so that neither a page nor a list can delete the last one. Revoke the rights
        first."""
        may: bool = super().has_delete_permission(request, obj)
        return may and not (isinstance(obj, User) and obj.is_superuser)


@admin.register(Group)
class GroupAdmin(PlainGroupAdmin, Audited):  # type: ignore[misc]
    pass


LIMITS = (
    "max_gpus",
    "max_gpu_memory_mb",
    "max_cpu_cores",
    "max_memory_mb",
    "max_concurrent_jobs",
    "max_gpus_per_user",
    "max_gpus_by_model",
    "max_queued_jobs",
    "max_deferred_jobs",
    "default_runtime_minutes",
)


class QuotaForm(ModelForm):  # type: ignore[type-arg]
    """Show the effect of an edit, and save it the second time, once the admin has seen that. Reject an edit of an
    outdated version."""

    go_ahead = BooleanField(
        required=False,
        label="Save anyway",
        help_text="An edit that affects running or pending jobs is not saved at once: you see its effect first",
    )
    seen_version = IntegerField(widget=HiddenInput, required=False)
    effect: dict[str, Any]

    class Meta:
        model = Quota
        fields = (*LIMITS, "guaranteed_gpus")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["seen_version"].initial = self.instance.version
        refuse_undecodable(self)

    @property
    def changed_data(self) -> list[str]:
        """Return the changed fields of the quota, without the tick and the version."""
        return [name for name in super().changed_data if name in QuotaForm.Meta.fields]

    def limits(self) -> dict[str, Any]:
        return {name: self.cleaned_data[name] for name in QuotaForm.Meta.fields}

    def clean_max_gpus_by_model(self) -> dict[str, int]:
        """Return no limits for an empty field. Check the value here: `clean` computes its effect before the model's
        validators run."""
        value = self.cleaned_data["max_gpus_by_model"]
        limits: dict[str, int] = {} if value is None else value
        check_model_limits(limits)
        return limits

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        self.effect = {}
        if self.errors or not self.instance.pk:
            return cleaned
        limits = self.limits()
        if all(getattr(self.instance, name) == value for name, value in limits.items()):
            return cleaned
        # Lock the row until the admin has saved: both are in one transaction.
        now = Quota.objects.select_for_update().get(pk=self.instance.pk)
        if cleaned.get("seen_version") != now.version:
            self.add_error("go_ahead", f"Not saved. {_last_edit(now)}. Reload this page and repeat your edit.")
            return cleaned
        self.effect = hook("quota_effect")(self.instance.tenant_id, limits)
        is_guarantee = limits["guaranteed_gpus"] != self.instance.guaranteed_gpus
        if _has_effect(self.effect, is_guarantee=is_guarantee) and not cleaned.get("go_ahead"):
            sentences = "; ".join(self.effect["sentences"])
            self.add_error("go_ahead", f"Not saved yet. With this edit, {sentences}. Tick this box to save it anyway.")
        return cleaned


class QuotaInline(StackedInline):  # type: ignore[misc]
    model = Quota
    form = QuotaForm
    can_delete = False
    min_num = 1
    max_num = 1


class MembershipFormSet(BaseInlineFormSet):  # type: ignore[type-arg]
    """Require an owner who can log in, as the API does."""

    def clean(self) -> None:
        super().clean()
        if self.instance.pk is None or any(self.errors) or not members.has_owner(self.instance):
            return
        rows = [form.cleaned_data for form in self.forms if form.cleaned_data and not form.cleaned_data.get("DELETE")]
        if not any(row["role"] == Role.OWNER and row["user"].is_active for row in rows):
            raise ValidationError("Not saved: a tenant needs an owner who can log in.")


class MembershipInline(CurrentFields, KeyFields, TabularInline):  # type: ignore[misc]
    model = Membership
    formset = MembershipFormSet
    extra = 0
    autocomplete_fields = ("user",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Membership]:
        """Return the memberships with what their lines show."""
        found: QuerySet[Membership] = super().get_queryset(request)
        return found.select_related("user", "tenant")

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Add labels for screen readers: in table cells fields have none."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None:
            field.widget.attrs.setdefault("aria-label", db_field.verbose_name)
        return field


# Django refuses a form of more than 1,000 fields. A line has six, and takes 7 ms.
MAX_MEMBERS = 100


@admin.register(Tenant)
class TenantAdmin(KeptWithJobs):
    list_display = ("name", "display_name", "weight", "tier", "max_gpus", "guaranteed_gpus")
    search_fields = ("name", "display_name")
    inlines = (QuotaInline, MembershipInline)
    readonly_fields = ("created_at", "history")

    class Media:
        js = ("app/quota-preview.js",)
        css: ClassVar = {"all": ("app/admin.css",)}

    list_select_related = ("quota",)

    @admin.display(description="limit of GPUs")
    def max_gpus(self, tenant: Tenant) -> str:
        return "no limit" if tenant.quota.max_gpus is None else str(tenant.quota.max_gpus)

    @admin.display(description="guaranteed GPUs")
    def guaranteed_gpus(self, tenant: Tenant) -> int:
        return tenant.quota.guaranteed_gpus

    def get_readonly_fields(self, request: HttpRequest, obj: Model | None = None) -> tuple[str, ...]:
        """Make the name of an existing tenant read-only: scripts use it."""
        shown = (*self.readonly_fields, "name") if obj else self.readonly_fields
        return shown if MembershipInline in self.get_inlines(request, obj) else (*shown, "many_members")

    def get_inlines(self, request: HttpRequest, obj: Model | None) -> Any:
        """Leave out the lines of many members, unless the form that is sent has them: it may be from before."""
        has_lines = "memberships-TOTAL_FORMS" in request.POST
        is_short = not isinstance(obj, Tenant) or obj.memberships.count() <= MAX_MEMBERS
        return self.inlines if has_lines or is_short else (QuotaInline,)

    @admin.display(description="members")
    def many_members(self, tenant: Tenant) -> str:
        count = tenant.memberships.count()
        return f"{count}, too many for this page; edit them with the commands of gpusched member"

    @admin.display(description="history of the quota")
    def history(self, tenant: Tenant) -> str:
        """Return the latest ten versions, newest first: time, actor, limits."""
        events = _quota_events(tenant.pk)[:10]
        if not events:
            return "nothing yet"
        rows = format_html_join("", "<p>{} · {} · {}</p>", events)
        back = format_html('<p><a href="{}#edits">Restore an earlier version…</a></p>', self.view_on_site(tenant))
        return format_html('<div class="quota-history">{}{}</div>', rows, back)

    def get_urls(self) -> list[Any]:
        view = self.admin_site.admin_view(self.quota_effect)
        return [path("<int:tenant_id>/quota-effect/", view, name="tenants_tenant_quota_effect"), *super().get_urls()]

    def quota_effect(self, request: HttpRequest, tenant_id: int) -> HttpResponse:
        """Return the effect of the edit in the form as JSON, without saving. The page calls it during typing."""
        tenant = Tenant.objects.select_related("quota").filter(pk=tenant_id).first()
        if tenant is None or request.method != "POST" or not self.has_change_permission(request, tenant):
            raise Http404
        typed = {**request.POST.dict(), "quota-0-go_ahead": "on"}
        with transaction.atomic():
            form = QuotaForm(typed, instance=tenant.quota, prefix="quota-0")
            is_fine = form.is_valid()
        errors = [f"{_label(form, name)}: {text}" for name, texts in form.errors.items() for text in texts]
        effect = form.effect if is_fine else {}
        defaults = {"differs": bool(effect), "errors": errors, "sentences": [], "contradicts": False}
        return JsonResponse({**defaults, **effect})

    def changeform_view(self, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with pghistory.context(actor=request.user.get_username(), via="admin"):
            return super().changeform_view(request, *args, **kwargs)

    def save_formset(self, request: HttpRequest, form: ModelForm[Any], formset: Any, change: bool) -> None:
        tenant = form.instance
        if formset.model is Quota and formset.initial_forms:
            # Django's own log reads these from the formset.
            formset.new_objects, formset.changed_objects, formset.deleted_objects = [], [], []
            for edited in (row for row in formset.forms if row.changed_data):
                _change_quota(request, tenant, edited)
                formset.changed_objects.append((edited.instance, edited.changed_data))
        else:
            super().save_formset(request, form, formset, change)
        UsageBalance.objects.get_or_create(tenant=tenant, defaults={"as_of": timezone.now()})
        tenants.announce_quota_edit(tenant)

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Iterable[Any] | None, add: bool = False
    ) -> Any:
        """Leave out the quota's formset: `change_quota` has audited its edit."""
        remaining = [formset for formset in formsets or () if add or formset.model is not Quota]
        return super().construct_change_message(request, form, remaining, add)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        """Allow deletion only without jobs: jobs and the ledger name their tenant forever."""
        may: bool = super().has_delete_permission(request, obj)
        return may and (not isinstance(obj, Tenant) or not obj.jobs.exists())

    def view_on_site(self, obj: Tenant) -> str:
        return reverse("tenant", args=[obj.name])


def _change_quota(request: HttpRequest, tenant: Tenant, edited: QuotaForm) -> None:
    """Change a quota, and show the effect as messages."""
    version = edited.cleaned_data["seen_version"]
    tenants.change_quota(tenant.pk, edited.limits(), actor=request.user.get_username(), expected_version=version)
    for sentence in edited.effect.get("sentences", ()):
        messages.info(request, f"Quota: {sentence}.")


def _has_effect(effect: dict[str, Any], *, is_guarantee: bool) -> bool:
    """Return whether an edit affects jobs at once, or changes which resources a guarantee can reclaim. Other effects
    appear after the edit."""
    if is_guarantee and effect and effect["sentences"] != [NO_EFFECT]:
        return True
    kinds = ("would_start", "would_wait", "would_never_start", "would_stop")
    return bool(effect.get("contradicts")) or any(effect[kind]["jobs"] for kind in kinds if kind in effect)


def _label(form: QuotaForm, name: str) -> str:
    return str(form.fields[name].label or name) if name in form.fields else "quota"


def _last_edit(quota: Quota) -> str:
    """Describe the last edit: actor, time, limits."""
    events = _quota_events(quota.tenant_id)
    if not events:
        return f"The quota was changed meanwhile: it is at version {quota.version}"
    at, actor, limits = events[0]
    return f"The quota was changed meanwhile, by {actor} at {at}: {limits}"


def _quota_events(tenant_id: int) -> list[tuple[str, str, str]]:
    events = Quota.pgh_event_models["update"].objects if hasattr(Quota, "pgh_event_models") else None
    if events is None:
        return []
    rows = events.filter(tenant_id=tenant_id).select_related("pgh_context").order_by("-pgh_id")
    names = ("guaranteed_gpus", *LIMITS)
    edits = []
    for row in rows[:10]:
        actor = (row.pgh_context.metadata if row.pgh_context else {}).get("actor", "unknown")
        changes = ", ".join(f"{name}={getattr(row, name)}" for name in names if getattr(row, name) not in (None, {}))
        edits.append((row.pgh_created_at.strftime("%Y-%m-%d %H:%M:%S UTC"), actor, changes or "no limits"))
    return edits


@admin.register(ApiToken)
class ApiTokenAdmin(Audited):
    """List and revoke tokens. Their users create them (page or API), where the text is shown once."""

    list_display = (
        "name",
        "prefix",
        "user",
        "tenant",
        "scopes",
        "created_at",
        "expires_at",
        "last_used_at",
        "revoked_at",
    )
    list_filter = ("tenant",)  # not the user: the page would list thousands
    search_fields = ("name", "prefix", "user__username")
    list_select_related = ("user", "tenant")  # Django's default leaves out keys that can be null
    readonly_fields = ("name", "prefix", "user", "tenant", "scopes", "created_at", "last_used_at")
    fields = (*readonly_fields, "expires_at", "revoked_at")

    def save_model(self, request: HttpRequest, obj: ApiToken, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        if obj.revoked_at is not None:
            tokens.revoke_token(obj)  # also revokes tokens created with it

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False
