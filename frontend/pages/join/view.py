"""Join a machine: a token, the commands to paste, and a live list of machines that have joined."""

from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.http import require_POST

from frontend.ui.page import page, perform, show
from gpusched.lib.api.problems import not_found
from gpusched.lib.db.sql import query
from nodes.inventory.join import authority_file, create_join_token, join_command, revoke_join_token
from nodes.models import JoinToken
from tenants.auth.identity import Identity

_HOURS = (("1", "1 hour"), ("24", "24 hours"), ("168", "7 days"))
_LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")

# Includes machines that were nodes before and joined again with this token.
_ARRIVED = """
    SELECT n.name, n.state, n.joined_at, n.agent_version, count(d.id) AS gpus,
           string_agg(DISTINCT d.model, ', ' ORDER BY d.model) AS models, n.joined_at < %s AS is_back
      FROM nodes_all n LEFT JOIN nodes_devices d ON d.node_id = n.id
     WHERE n.let_in_by = %s AND n.removed_at IS NULL GROUP BY n.id, n.name, n.state, n.joined_at, n.agent_version
     ORDER BY n.joined_at DESC, n.id DESC LIMIT 20
"""


class JoinForm(forms.Form):
    hours = forms.ChoiceField(choices=_HOURS, initial="24")


@page
def join(request: HttpRequest, identity: Identity) -> HttpResponse:
    """Show the steps. A POST by an admin creates a token and shows its text once."""
    context: dict[str, Any] = {**join_context(request), "form": JoinForm()}
    status = 200
    if request.method == "POST":
        identity.require_admin()
        form = context["form"] = JoinForm(request.POST)
        if form.is_valid():
            token, secret = create_join_token(float(form.cleaned_data["hours"]), identity.username)
            context |= {"token": token, "command": join_command(context["url"], secret), "arrived": _arrived(token)}
        status = 400 if form.errors else 200
    context["tokens"] = _valid_tokens() if identity.is_admin else []
    response = show(request, identity, "join/page.html", context, status=status)
    response["Cache-Control"] = "no-store"
    return response


def join_context(request: HttpRequest) -> dict[str, Any]:
    """Return the context of the join commands, without a token."""
    is_loopback = request.get_host().rsplit(":", 1)[0] in _LOOPBACK_HOSTS
    url = request.build_absolute_uri("/").rstrip("/")
    return {
        "url": url, "command": join_command(url, "TOKEN"), "authority": authority_file(url), "hours": _HOURS,
        "is_loopback": is_loopback,
    }  # fmt: skip


@page
def arrivals(request: HttpRequest, identity: Identity, token_id: int) -> HttpResponse:
    """Return the machines that have joined with a token; the page polls this."""
    identity.require_admin()
    token = JoinToken.objects.filter(pk=token_id).first()
    if token is None:
        raise not_found(f"join token {token_id}")
    return show(request, identity, "join/status.html", {"token": token, "arrived": _arrived(token)})


@require_POST
@page
def revoke(request: HttpRequest, identity: Identity, token_id: int) -> HttpResponse:
    identity.require_admin()
    return perform(request, "join", lambda: revoke_join_token(token_id))


def _arrived(token: JoinToken) -> list[dict[str, Any]]:
    return query(_ARRIVED, [token.created_at, token.prefix])


def _valid_tokens() -> list[JoinToken]:
    return list(JoinToken.objects.filter(revoked_at=None, expires_at__gt=timezone.now()).order_by("-id")[:20])
