"""Shared page handling: login, logout, the identity of the caller, and problems rendered as pages."""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlsplit

from django import forms
from django.conf import settings
from django.contrib import messages
from django.contrib.auth import authenticate
from django.contrib.auth.forms import AuthenticationForm
from django.contrib.auth.models import User
from django.contrib.auth.views import LoginView, LogoutView, redirect_to_login
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render, resolve_url
from django.utils.cache import patch_cache_control

from frontend.ui.errors import page_error
from frontend.ui.field_names import label
from gpusched.lib.api import rate_limits
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.protocol.states import Role
from tenants.auth.identity import Identity, identity

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, Identity, P], HttpResponse]


class NameAndPassword(AuthenticationForm):
    """Login form. Also requests a new password if the one entered is a one-time password."""

    new_password = forms.CharField(required=False, strip=False)
    error_messages = {
        "invalid_login": "Wrong name or password. Check both and try again.",
        "inactive": "This account is disabled. Ask an admin.",
    }
    needs_new_password = False

    def clean(self) -> dict[str, Any]:
        name, password = self.cleaned_data.get("username"), self.cleaned_data.get("password")
        if not name or not password:
            return self.cleaned_data
        new = self.cleaned_data.get("new_password") or None
        try:
            user = authenticate(self.request, username=name, password=password, new_password=new)
        except Problem as problem:
            self._refuse(problem)
            return self.cleaned_data
        if user is None:
            self.needs_new_password = new is not None
            raise self.get_invalid_login_error()
        assert isinstance(user, User)
        self.confirm_login_allowed(user)
        self.user_cache = user
        return self.cleaned_data

    def _refuse(self, problem: Problem) -> None:
        if problem.code == "password_change_required":
            self.add_error(None, "This is a one-time password. Enter it again, and choose a new password.")
        elif problem.status == 400:
            for error in problem.errors:
                self.add_error("new_password", as_sentence(error.message))
        else:
            raise problem
        self.needs_new_password = True


login = LoginView.as_view(
    template_name="login/page.html",
    authentication_form=NameAndPassword,
    redirect_authenticated_user=True,
    extra_context={"sso_name": settings.ENV.oidc_name if settings.ENV.oidc_issuer else ""},
)
logout = LogoutView.as_view()


def page(view: View[P]) -> Callable[Concatenate[HttpRequest, P], HttpResponse]:
    """Require a login, call the view with the identity of the caller, and render a Problem as an error page."""

    @wraps(view)
    def wrapper(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_authenticated:
            return _to_login(request)
        rate_limits.count_on_pages(request, request.user.pk)
        caller = identity(request)
        log.act_as(caller.username, "page")
        try:
            response = view(request, caller, *args, **kwargs)
        except Problem as problem:
            is_absent = problem.status == 404
            status = problem.status if problem.status in (403, 404) else 400
            response = page_error(request, status, problem if is_absent else None)
        if "Cache-Control" not in response:
            patch_cache_control(response, private=True, no_cache=True)
        return response

    return wrapper


def _to_login(request: HttpRequest) -> HttpResponse:
    """Redirect to the login and back. A request for a fragment redirects the whole page."""
    if "HX-Request" in request.headers:
        target = redirect_to_login(request.headers.get("HX-Current-URL", "/"))["Location"]
        return HttpResponse(status=204, headers={"HX-Redirect": target})
    return redirect_to_login(request.get_full_path())


def show(
    request: HttpRequest, caller: Identity, template: str, context: dict[str, Any], status: int = 200
) -> HttpResponse:
    """Render a page with the context that every page needs."""
    open_tenants = caller.roles.keys() - caller.archived
    may_submit = caller.is_admin or any(caller.has(Role.MEMBER, tenant_id) for tenant_id in open_tenants)
    context = {
        "identity": caller,
        "no_tenant": not caller.roles and not caller.is_admin,
        "may_submit": may_submit,
        **context,
    }
    return render(request, template, context, status=status)


def perform(request: HttpRequest, target: str | list[str], action: Callable[[], str], *args: Any) -> HttpResponse:
    """Perform the action of a button, then redirect to `target` with a message; a script that accepts JSON receives
    `is_done` and `sentence`. A 404 stays a 404. `target`: a page and its arguments; the action can change a list."""
    try:
        is_done, sentence = True, as_sentence(action())
    except Problem as problem:
        if problem.status == 404:
            raise
        is_done, sentence = False, refusal(problem)
    if request.get_preferred_type(["text/html", "application/json"]) == "application/json":
        return JsonResponse({"is_done": is_done, "sentence": sentence})
    (messages.success if is_done else messages.error)(request, sentence)
    address = resolve_url(target, *args) if isinstance(target, str) else resolve_url(*target)
    return redirect(address + _query_to_keep(request, address))


def _query_to_keep(request: HttpRequest, path: str) -> str:
    """Return the query of the referring page, such as `?tab=log`, if it is the page to return to."""
    try:
        came_from = urlsplit(request.headers.get("Referer", ""))
    except ValueError:
        return ""
    is_same = came_from.netloc == request.get_host() and came_from.path == path
    return f"?{came_from.query}" if is_same and came_from.query else ""


def refusal(problem: Problem) -> str:
    """Return the sentences of a problem: the first wrong field, or the detail and the next step."""
    first = problem.errors[0] if problem.status == 400 and problem.errors else None
    parts = [field_message(first.field, first.message)] if first else [problem.detail, problem.next_step]
    return " ".join(as_sentence(part) for part in parts if part)


def field_message(name: str, message: str) -> str:
    """Return a field error as a sentence with the readable name of its field."""
    return as_sentence(f"{label(name)}: {message}" if name else message)


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
