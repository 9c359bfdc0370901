"""Tokens of the user: create, list, revoke."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_POST

from frontend.ui.page import page, perform, show
from gpusched.lib.api.problems import not_found
from gpusched.protocol.states import Scope
from tenants.auth import tokens as auth_tokens
from tenants.auth.identity import Identity
from tenants.models import ApiToken

_SCOPES = (
    (Scope.READ, "read: see jobs, nodes and logs"),
    (Scope.WRITE, "write: submit and change jobs"),
    (Scope.ADMIN, "admin: do what only admins can"),
)
_EXPIRES = (("30", "in 30 days"), ("90", "in 90 days"), ("365", "in a year"), ("", "never"))
# Each `gpusched login` adds one: a script that logs in has thousands.
MAX_LISTED = 200


class TokenForm(forms.Form):
    """The name, scopes and lifetime of a new token. Only admins can choose the scope admin."""

    name = forms.CharField(max_length=100, error_messages={"required": "Enter a name."})
    scopes = forms.MultipleChoiceField(choices=_SCOPES, error_messages={"required": "Choose at least one."})
    expires_in_days = forms.ChoiceField(choices=_EXPIRES, required=False)

    def __init__(self, is_admin: bool, data: Any = None) -> None:
        super().__init__(data, initial={"scopes": ["read", "write"], "expires_in_days": "90"})
        field = self.fields["scopes"]
        assert isinstance(field, forms.MultipleChoiceField)
        field.choices = [choice for choice in _SCOPES if is_admin or choice[0] != Scope.ADMIN]


@page
def tokens(request: HttpRequest, identity: Identity) -> HttpResponse:
    form = TokenForm(identity.is_admin, request.POST if request.method == "POST" else None)
    secret = ""
    if form.is_valid():
        days = form.cleaned_data["expires_in_days"]
        expires_at = auth_tokens.expires_after(float(days) if days else None)
        _, secret = auth_tokens.create_token(
            identity.user_id, form.cleaned_data["name"], form.cleaned_data["scopes"], expires_at=expires_at
        )
        form = TokenForm(identity.is_admin)
    newest = ApiToken.objects.filter(user_id=identity.user_id).select_related("tenant")[: MAX_LISTED + 1]
    listed = [_represent(token) for token in newest]
    context = {
        "form": form,
        "secret": secret,
        "tokens": listed[:MAX_LISTED],
        "max_listed": MAX_LISTED if len(listed) > MAX_LISTED else None,
        "url": request.build_absolute_uri("/").rstrip("/"),
    }
    response = show(request, identity, "tokens/page.html", context, status=400 if form.errors else 200)
    response["Cache-Control"] = "no-store"
    return response


def _represent(token: ApiToken) -> dict[str, Any]:
    is_expired = token.expires_at is not None and token.expires_at <= timezone.now()
    return {"token": token, "state": "revoked" if token.revoked_at else "expired" if is_expired else "active"}


@require_POST
@page
def revoke(request: HttpRequest, identity: Identity, token_id: int) -> HttpResponse:
    token = ApiToken.objects.filter(pk=token_id, user_id=identity.user_id).first()
    if token is None:
        raise not_found(f"token {token_id}")

    def do() -> str:
        derived = auth_tokens.revoke_token(token)
        return f"token {token.name} is revoked" + (f", and {len(derived)} created with it" if derived else "")

    return perform(request, "tokens", do)
