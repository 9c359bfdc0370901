"""Edit a quota: the scheduler computes the effect, which is shown first; then the edit is applied to the version
read."""

from typing import Any

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect

from frontend.pages.tenants import details
from frontend.ui.page import page, refusal, show
from gpusched.lib.api.problems import Problem, not_found
from scheduling.whatif import edit_effects
from tenants.api.tenants import find_tenant, represent_tenants
from tenants.auth.identity import Identity
from tenants.tenancy import tenants

_NO_LIMIT = "no limit"


class ByModel(forms.Field):
    """A field of lines like A100=16, parsed into {"A100": 16}."""

    widget = forms.Textarea

    def to_python(self, value: Any) -> dict[str, int]:
        limits: dict[str, int] = {}
        if "\x00" in str(value or ""):
            raise forms.ValidationError("Null characters are not allowed.")
        for line in (line.strip() for line in str(value or "").splitlines()):
            if not line:
                continue
            model, is_split, limit = (part.strip() for part in line.rpartition("="))
            if not is_split or not (limit.isascii() and limit.isdigit() and len(limit) < 10):
                raise forms.ValidationError(f"{line[:60]}: write MODEL=GPUS, one per line, like A100=16.")
            limits[model] = int(limit)
        return limits

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(f"{model}={limit}" for model, limit in value.items()) if isinstance(value, dict) else value


def _limit(label: str) -> forms.IntegerField:
    return forms.IntegerField(label=label, required=False, min_value=0, max_value=2**31 - 1)


class QuotaForm(forms.Form):
    """The limits of a quota; empty means no limit. `version`: of the quota that was read."""

    guaranteed_gpus = forms.IntegerField(label="Guaranteed GPUs", min_value=0, max_value=2**31 - 1)
    max_gpus = _limit("GPUs at most")
    max_gpus_per_user = _limit("GPUs per user")
    max_gpus_by_model = ByModel(label="GPUs by model", required=False)
    max_concurrent_jobs = _limit("Jobs at once")
    max_queued_jobs = _limit("Queued jobs")
    max_deferred_jobs = _limit("Deferred jobs")
    max_cpu_cores = _limit("CPU cores")
    max_memory_mb = _limit("Memory")
    max_gpu_memory_mb = _limit("GPU memory")
    default_runtime_minutes = _limit("Default time limit")
    version = forms.IntegerField(min_value=0, widget=forms.HiddenInput)
    go_ahead = forms.BooleanField(required=False)

    def limits(self) -> dict[str, Any]:
        return {name: value for name, value in self.cleaned_data.items() if name not in ("version", "go_ahead")}

    def refuse(self, problem: Problem) -> None:
        """Add the errors to their fields, or above the form."""
        field_errors = [error for error in problem.errors if error.field in self.fields]
        for error in field_errors:
            self.add_error(error.field, error.message)
        if not field_errors:
            self.add_error(None, refusal(problem))


@page
def quota(request: HttpRequest, identity: Identity, name: str) -> HttpResponse:
    """Show the form; a POST applies it, or with `preview` shows its effect. `back`: an edit whose previous quota fills
    the form."""
    tenant = find_tenant(name, identity)
    identity.require_admin()
    current = represent_tenants([tenant.pk])[0]["quota"]
    form = _form(request, tenant.pk, current)
    effect: dict[str, Any] = {}
    if form.is_bound and form.is_valid():
        effect = _effect(tenant.pk, form)
        is_apply = request.method == "POST" and "preview" not in request.POST and not form.errors
        if is_apply and effect.get("contradicts") and not form.cleaned_data["go_ahead"]:
            form.add_error(None, "Not applied yet. Check the effect, then confirm it.")
        elif is_apply and _apply(request, identity, tenant.pk, form):
            return redirect("tenant", name)
    context = {
        "tenant": tenant,
        "current": current,
        "form": form,
        "effect": effect,
        "differences": _differences(form, current),
    }
    if "HX-Request" in request.headers:
        return show(request, identity, "tenants/quota_effect.html", context)
    return show(request, identity, "tenants/quota.html", context, status=400 if form.errors else 200)


def _form(request: HttpRequest, tenant_id: int, current: dict[str, Any]) -> QuotaForm:
    if request.method == "POST":
        return QuotaForm(request.POST)
    if "back" not in request.GET:
        return QuotaForm(initial=current)
    previous = details.quota_before(tenant_id, request.GET["back"])
    if previous is None:
        raise not_found(f"edit {request.GET['back'][:20]} of this quota")
    restored = {
        **current,
        **{limit: previous[limit] for limit in current.keys() & previous.keys()},
        "version": current["version"],
    }
    by_model = QuotaForm.base_fields["max_gpus_by_model"].prepare_value(restored["max_gpus_by_model"])
    return QuotaForm({**restored, "max_gpus_by_model": by_model})


def _effect(tenant_id: int, form: QuotaForm) -> dict[str, Any]:
    """Return the effect computed by the scheduler; a refusal is added to the form."""
    try:
        tenants.checked_quota(tenant_id, form.limits(), expected_version=form.cleaned_data["version"])
    except Problem as problem:
        form.refuse(problem)
        return {}
    return edit_effects.quota_effect(tenant_id, form.limits())


def _apply(request: HttpRequest, identity: Identity, tenant_id: int, form: QuotaForm) -> bool:
    version = form.cleaned_data["version"]
    try:
        tenants.change_quota(tenant_id, form.limits(), actor=identity.username, expected_version=version)
    except Problem as problem:
        form.refuse(problem)
        return False
    messages.success(request, "The quota is changed. The scheduler applies it now.")
    return True


def _differences(form: QuotaForm, current: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (label, current, edited) of changed limits."""
    if not form.is_bound or not hasattr(form, "cleaned_data"):
        return []
    edited = form.limits()
    return [
        (str(form.fields[name].label), _limit_text(current[name]), _limit_text(edited[name]))
        for name in current
        if name != "version" and name in edited and current[name] != edited[name]
    ]


def _limit_text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{model} {limit}" for model, limit in value.items()) or _NO_LIMIT
    return _NO_LIMIT if value is None else str(value)
