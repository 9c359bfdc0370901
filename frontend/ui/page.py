"""What all pages go through: logging in and out, who is asking, and refusals shown as pages."""

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
from gpusched.lib.api.problems import Problem
from gpusched.lib.audit import log
from gpusched.protocol.states import Role
from tenants.auth.identity import Identity, identity

P = ParamSpec("P")
View = Callable[Concatenate[HttpRequest, Identity, P], HttpResponse]


class NameAndPassword(AuthenticationForm):
    """Asks for a new password, too, once the one given turns out to be for one login."""

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
    """A view for people who are logged in, called with their identity; a refusal becomes an error page."""

    @wraps(view)
    def shown(request: HttpRequest, /, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        if not request.user.is_authenticated:
            return _to_login(request)
        who = identity(request)
        log.act_as(who.username, "page")
        try:
            response = view(request, who, *args, **kwargs)
        except Problem as problem:
            is_absent = problem.status == 404
            status = problem.status if problem.status in (403, 404) else 400
            response = page_error(request, status, problem if is_absent else None)
        if "Cache-Control" not in response:
            patch_cache_control(response, private=True, no_cache=True)
        return response

    return shown


def _to_login(request: HttpRequest) -> HttpResponse:
    """To the login and back; a part of a page sends the whole page there rather than taking the login into itself."""
    if "HX-Request" in request.headers:
        target = redirect_to_login(request.headers.get("HX-Current-URL", "/"))["Location"]
        return HttpResponse(status=204, headers={"HX-Redirect": target})
    return redirect_to_login(request.get_full_path())


def show(request: HttpRequest, who: Identity, template: str, words: dict[str, Any], status: int = 200) -> HttpResponse:
    """A page with what all of them need to know of the person."""
    open_tenants = who.roles.keys() - who.archived
    may_submit = who.is_admin or any(who.has(Role.MEMBER, tenant_id) for tenant_id in open_tenants)
    words = {"who": who, "no_tenant": not who.roles and not who.is_admin, "may_submit": may_submit, **words}
    return render(request, template, words, status=status)


def perform(request: HttpRequest, target: str | list[str], action: Callable[[], str], *args: Any) -> HttpResponse:
    """Does what a button asks for and returns to a page that says how it went; a part of a page, which asks for JSON,
    is told `is_done` and `sentence`. What may not be seen stays a 404. `target`: the page and its arguments; the action
    may change a list."""
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
    """What of the page was shown (`?tab=log`), if it was asked from the page that is returned to."""
    try:
        came_from = urlsplit(request.headers.get("Referer", ""))
    except ValueError:
        return ""
    is_same = came_from.netloc == request.get_host() and came_from.path == path
    return f"?{came_from.query}" if is_same and came_from.query else ""


def refusal(problem: Problem) -> str:
    """What was refused and what to do about it, as sentences; of wrong fields what is wrong with the first."""
    first = problem.errors[0] if problem.status == 400 and problem.errors else None
    parts = [field_message(first.field, first.message)] if first else [problem.detail, problem.next_step]
    return " ".join(as_sentence(part) for part in parts if part)


def field_message(name: str, message: str) -> str:
    """`gpu_count` and its message as a sentence with the words of the page; of no field the message alone."""
    return as_sentence(f"{label(name)}: {message}" if name else message)


def as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
