"""Submit a job from the page, with the equivalent command and JSON."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.views.decorators.http import require_POST

from frontend.pages.submit import equivalent
from frontend.pages.submit.cost_estimate import estimate_cost
from frontend.pages.submit.form import SubmitForm, not_typed, typed
from frontend.ui.page import as_sentence, field_message, page, show
from gpusched.lib.api.problems import Problem
from gpusched.lib.api.rest import decode
from gpusched.lib.db.sql import query
from gpusched.protocol.job_request import JobRequest
from gpusched.protocol.states import Role
from jobs.listing import representation
from jobs.submit import queue_limits
from jobs.submit import submit as services
from tenants.auth.identity import Identity

_KEY = re.compile(r"[0-9a-f]{32}")
_MAX_DIGITS = 18
# Problems of the question, not of the job.
_NO_ANSWER = ("unanswered", "too_many_questions")


@page
def submit(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Show the form; a POST submits. The key in the form makes the submit idempotent."""
    tenants = _tenants(identity)
    key = services.new_key()
    if request.method != "POST":
        job = _job_again(request, identity)
        form = SubmitForm(sorted(tenants), initial=_without_none(typed(job)) if job else {})
        return _form_page(request, identity, form, key, left_out=not_typed(job) if job else ())
    form = SubmitForm(sorted(tenants), request.POST)
    sent = request.POST.get("key", "")
    key = sent if _KEY.fullmatch(sent) else key
    if form.is_valid() and "preview" not in request.POST:
        try:
            return redirect("job", _submit_job(request, form, identity, key))
        except Problem as problem:
            form.refuse(problem)
            if problem.code == "idempotency_key_reused":
                key = services.new_key()
                form.add_error(None, "This form has already submitted a job. Submit again to create another one.")
    elif form.errors:
        form.check()
    return _form_page(request, identity, form, key, status=400 if form.errors else 200)


def _submit_job(request: HttpRequest, form: SubmitForm, identity: Identity, key: str) -> int:
    raw = msgspec.json.encode(form.job_fields())
    submission = services.submit(decode(raw, JobRequest), identity, key, raw)
    if submission.warning:
        messages.warning(request, as_sentence(queue_limits.sentence(submission.warning)))
    return int(msgspec.json.decode(submission.answer)["job_id"])


@require_POST
@page
def preview(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Render the panel beside the form for the current values."""
    tenants = _tenants(identity)
    form = SubmitForm(sorted(tenants), request.POST)
    return show(request, identity, "submit/equivalent.html", _equivalent(form, tenants, identity))


def _form_page(
    request: HttpRequest,
    identity: Identity,
    form: SubmitForm,
    key: str,
    status: int = 200,
    left_out: Sequence[str] = (),
) -> HttpResponse:
    tenants = _tenants(identity)
    context = {"form": form, "key": key, "tenants": tenants, "models": _models(), "secrets": _secrets(tenants)}
    context["left_out"] = left_out
    context["is_resubmit_missing"] = "again" in request.GET and not form.is_bound and not form.initial
    context["is_restored"] = True  # the browser restores the fields after Back or a reload
    return show(
        request, identity, "submit/page.html", {**context, **_equivalent(form, tenants, identity)}, status=status
    )


def _equivalent(form: SubmitForm, tenants: dict[str, int], identity: Identity) -> dict[str, Any]:
    """Return command, JSON and verdict, or only the errors: with an invalid field the command would be another job.

    The scheduler takes seconds in a long queue, so the page opens without its verdict and asks for it at once."""
    is_awaited = not form.is_bound
    if is_awaited:
        initial = {name: form.get_initial_for_field(field, name) for name, field in form.fields.items()}
        form = SubmitForm(sorted(tenants), {"tenant": next(iter(sorted(tenants)), ""), **_without_none(initial)})
    if not hasattr(form, "cleaned_data"):
        form.full_clean()
    fields = form.job_fields()
    verdict = _verdict(form, fields, identity, is_awaited=is_awaited)
    wrong = {name: str(messages_of_field[0]) for name, messages_of_field in form.errors.items() if name in form.fields}
    context: dict[str, Any] = {"verdict": verdict, "wrong": wrong}
    if wrong:
        return context
    return {
        **context,
        "command_line": equivalent.command_line(fields),
        "json": equivalent.as_json(fields),
        "argv": fields.get("command"),
        "price": estimate_cost(fields, tenants, identity.default_minutes),
    }


def _without_none(initial: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in initial.items() if value is not None}


def _verdict(
    form: SubmitForm, fields: dict[str, Any], identity: Identity, *, is_awaited: bool = False
) -> dict[str, Any]:
    """Simulate the submit with the service that REST uses. A refusal marks its fields. `is_awaited`: return only what
    is known without the scheduler."""
    if form.errors:
        return {"refused": _first_refusal(form)}
    if "tenant" not in fields:
        return {"is_open": True}
    if is_awaited:
        return {"is_awaited": True}
    # Capacity can be checked before there is a command.
    is_commanded = "command" in fields or "script" in fields
    job_fields = fields if is_commanded else {**fields, "command": ["true"]}
    try:
        job_request = decode(msgspec.json.encode(job_fields), JobRequest)
        return {"simulation": services.simulate(job_request, identity), "is_commanded": is_commanded}
    except Problem as problem:
        if problem.status == 400 and problem.errors:
            form.refuse(problem)
            return {"refused": _first_refusal(form)}
        return {"unknown" if problem.code in _NO_ANSWER else "problem": problem}


def _first_refusal(form: SubmitForm) -> str:
    """Return the first error with its field name, as the field can be folded."""
    name, errors = next(iter(form.errors.items()))
    return field_message(name if name in form.fields else "", str(errors[0]))


def _models() -> list[str]:
    return [row["model"] for row in query("SELECT DISTINCT model FROM nodes_devices ORDER BY model")]


def _secrets(tenants: dict[str, int]) -> list[str]:
    """Return the names of secrets that jobs of these tenants can use."""
    rows = query("SELECT DISTINCT name FROM tenants_secrets WHERE tenant_id = ANY(%s) ORDER BY name LIMIT 200",
                  [list(tenants.values())])  # fmt: skip
    return [row["name"] for row in rows]


def _tenants(identity: Identity) -> dict[str, int]:
    """Return the tenants that the caller can submit for: ids by name."""
    if identity.is_admin:
        return {row["name"]: row["id"] for row in query("SELECT id, name FROM tenants_all WHERE archived_at IS NULL")}
    return {
        name: number
        for number, name in identity.tenant_names.items()
        if identity.has(Role.MEMBER, number) and number not in identity.archived
    }


def _job_again(request: HttpRequest, identity: Identity) -> dict[str, Any] | None:
    """Return the job in `?again=`, if the caller can see it."""
    text = request.GET.get("again", "")
    if not (text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS):
        return None
    visible = identity.visible_tenants()
    jobs = representation.select(
        "j.id = %s AND (%s::bigint[] IS NULL OR j.tenant_id = ANY(%s))", [int(text), visible, visible]
    )
    return jobs[0] if jobs else None
