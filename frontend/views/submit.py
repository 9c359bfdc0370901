"""Submitting a job from the page, with the command and the JSON that would do the same."""

import re
from typing import Any

import msgspec
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from frontend import equivalents
from frontend.forms import SubmitForm, typed
from frontend.views.entrance import page, show
from gpusched.lib.api import decode
from gpusched.lib.problems import Problem
from gpusched.lib.sql import query
from gpusched.protocol.jobs import JobRequest, problems
from gpusched.protocol.states import Role
from jobs import representation, services
from scheduling.services import problem_if_impossible
from tenants.permissions import Identity

_KEY = re.compile(r"[0-9a-f]{32}")
_MOST_DIGITS = 18


@page
def submit(request: HttpRequest, who: Identity) -> HttpResponse:
    """The form; a POST submits. The key in the form makes a repeated submit harmless."""
    tenants = _tenants(who)
    key = services.new_key()
    if request.method != "POST":
        form = SubmitForm(sorted(tenants), initial=_again(request, who))
        return _form_page(request, who, form, key)
    form = SubmitForm(sorted(tenants), request.POST)
    sent = request.POST.get("key", "")
    key = sent if _KEY.fullmatch(sent) else key
    if form.is_valid() and "preview" not in request.POST:
        try:
            return redirect("job", _submitted(form, who, key))
        except Problem as problem:
            form.refuse(problem)
            if problem.code == "idempotency_key_reused":
                key = services.new_key()
                form.add_error(None, "This form has submitted a job before. Submit again to make another one.")
    elif form.errors:
        form.check()
    return _form_page(request, who, form, key, status=400 if form.errors else 200)


def _submitted(form: SubmitForm, who: Identity, key: str) -> int:
    raw = msgspec.json.encode(form.job_fields())
    done = services.submit(decode(raw, JobRequest), who, key, raw)
    return int(msgspec.json.decode(done.answer)["job_id"])


@require_POST
@page
def preview(request: HttpRequest, who: Identity) -> HttpResponse:
    """The panel beside the form, for what is typed so far."""
    tenants = _tenants(who)
    form = SubmitForm(sorted(tenants), request.POST)
    return show(request, who, "pages/equivalent.html", _equivalent(form, tenants))


def _form_page(request: HttpRequest, who: Identity, form: SubmitForm, key: str, status: int = 200) -> HttpResponse:
    tenants = _tenants(who)
    models = query("SELECT DISTINCT model FROM nodes_device ORDER BY model")
    words = {"form": form, "key": key, "tenants": tenants, "models": [row["model"] for row in models]}
    return show(request, who, "pages/submit.html", {**words, **_equivalent(form, tenants)}, status=status)


def _equivalent(form: SubmitForm, tenants: dict[str, int]) -> dict[str, Any]:
    """Command, JSON and whether it can run, as far as what is typed is understood."""
    if not form.is_bound:
        initial = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
        form = SubmitForm(sorted(tenants), {"tenant": next(iter(sorted(tenants)), ""), **_given(initial)})
    if not hasattr(form, "cleaned_data"):
        form.full_clean()
    fields = form.job_fields()
    return {
        "command_line": equivalents.command_line(fields),
        "json": equivalents.as_json(fields),
        "argv": fields.get("command"),
        "verdict": _verdict(form, fields, tenants),
    }


def _given(initial: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in initial.items() if value is not None}


def _verdict(form: SubmitForm, fields: dict[str, Any], tenants: dict[str, int]) -> dict[str, Any]:
    """What would happen on submit: a refusal with its next step, or that it can run and how many wait."""
    if form.errors or "tenant" not in fields:
        return {"is_open": True}
    wanted = decode(msgspec.json.encode(fields), JobRequest)
    found = problems(wanted)
    if found:
        return {"is_open": True, "missing": found[0]}
    problem = problem_if_impossible(wanted, tenants[fields["tenant"]])
    if problem is not None:
        return {"problem": problem}
    [row] = query("SELECT count(*) AS jobs FROM jobs_job WHERE state = 'pending' AND priority >= %s", [wanted.priority])
    return {"ahead": row["jobs"]}


def _tenants(who: Identity) -> dict[str, int]:
    """Tenants that the person may submit for, by name."""
    if who.is_admin:
        return {row["name"]: row["id"] for row in query("SELECT id, name FROM tenants_tenant")}
    return {name: number for number, name in who.tenant_names.items() if who.has(Role.MEMBER, number)}


def _again(request: HttpRequest, who: Identity) -> dict[str, Any]:
    """The fields of the job that `?again=` names, if it may be seen."""
    text = request.GET.get("again", "")
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        return {}
    visible = who.visible_tenants()
    found = representation.select(
        "j.id = %s AND (%s::bigint[] IS NULL OR j.tenant_id = ANY(%s))", [int(text), visible, visible]
    )
    return _given(typed(found[0])) if found else {}
