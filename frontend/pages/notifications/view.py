"""Routes and webhooks of the user and their tenants: create, test, turn off, remove; and what was delivered to them."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_POST

from frontend.ui.page import as_sentence, page, perform, show
from gpusched.lib.api.problems import Problem, not_found
from gpusched.protocol.states import Role
from notifications import deliveries, routes
from notifications.models import CHOSEN_KINDS, MAX_DIGEST_MINUTES, Channel, Kind, Route
from tenants.api.tenants import find_tenant
from tenants.auth.identity import Identity

_MAX_DELIVERIES = 20
_CHANNELS = (("apprise", "E-mail, chat or push"), ("webhook", "Webhook, for a program"))
_KIND_LABELS = {
    Kind.JOB_ENDED: "job completed or was cancelled",
    Kind.JOB_FAILED: "job failed, with the last lines of its log",
    Kind.JOB_ABOUT_TO_END: "job reaches its time limit soon",
    Kind.JOB_PREEMPTED: "job was preempted",
    Kind.BUDGET: "50, 80 or 100 % of a budget are used",
    Kind.RESERVATION_STARTING: "reservation starts",
    Kind.RESERVATION_IDLE: "reservation is idle",
    Kind.RESERVATION_LOST_GPUS: "reservation lost GPUs, and no others are free",
    Kind.RESERVATION_RELEASED: "reservation was released",
    Kind.INCIDENT: "incident of a node or GPU",
}
_SHORT = {kind: Kind(kind).value.replace("_", " ") for kind in CHOSEN_KINDS}
_VERBS = ("test", "on", "off", "remove", "rotate")


class RouteForm(forms.Form):
    """A new route or webhook. Its address is never shown again."""

    channel = forms.ChoiceField(choices=_CHANNELS)
    name = forms.CharField(max_length=63, error_messages={"required": "Enter a name."})
    target = forms.CharField(max_length=2000, error_messages={"required": "Enter an address."})
    tenant = forms.ChoiceField(choices=(), required=False)
    kinds = forms.MultipleChoiceField(choices=(), error_messages={"required": "Choose at least one."})
    quiet_from = forms.CharField(required=False)
    quiet_until = forms.CharField(required=False)
    time_zone = forms.CharField(required=False)
    digest_minutes = forms.IntegerField(required=False, min_value=0, max_value=MAX_DIGEST_MINUTES)

    def __init__(self, identity: Identity, data: Any = None) -> None:
        super().__init__(data, initial={"kinds": [Kind.JOB_FAILED], "channel": "apprise", "time_zone": "UTC"})
        owned = sorted(name for number, name in identity.tenant_names.items() if identity.has(Role.OWNER, number))
        kinds = [
            (kind, _KIND_LABELS[Kind(kind)])
            for kind in CHOSEN_KINDS
            if kind != Kind.INCIDENT or identity.can_administer
        ]
        self._choices("tenant", [("", "Me"), *((name, f"Tenant {name}") for name in owned)])
        self._choices("kinds", kinds)

    def _choices(self, name: str, choices: list[tuple[str, str]]) -> None:
        field = self.fields[name]
        assert isinstance(field, forms.ChoiceField)
        field.choices = choices

    def create(self, identity: Identity) -> tuple[Route, str]:
        """Create what the form describes. Return it, and the secret of a webhook. Problem for what is refused."""
        values = dict(self.cleaned_data)
        name = values.pop("tenant")
        tenant = find_tenant(name, identity) if name else None
        channel = Channel(values.pop("channel"))
        fields = {field: values[field] for field in ("name", "target", "kinds")}
        if channel == Channel.WEBHOOK:
            return routes.create_webhook(tenant, fields, identity)
        fields |= {"quiet_from": values["quiet_from"] or None, "quiet_until": values["quiet_until"] or None}
        fields |= {"digest_minutes": values["digest_minutes"] or 0, "time_zone": values["time_zone"] or "UTC"}
        return routes.create(channel, tenant, fields, identity), ""

    def refuse(self, problem: Problem) -> None:
        """Show a refusal beside the field that it names."""
        for error in problem.errors:
            field = {"url": "target"}.get(error.field, error.field)
            self.add_error(field if field in self.fields else None, as_sentence(error.message))
        if not problem.errors:
            self.add_error("name" if problem.code == "name_taken" else None, as_sentence(problem.detail))


@page
def notifications(request: HttpRequest, identity: Identity) -> HttpResponse:
    form = RouteForm(identity, request.POST if request.method == "POST" else None)
    created: Route | None = None
    secret = ""
    if form.is_valid():
        try:
            created, secret = form.create(identity)
        except Problem as problem:
            if problem.status in (403, 404):
                raise
            form.refuse(problem)
        else:
            form = RouteForm(identity)
    return _show(request, identity, form, created, secret)


def _show(
    request: HttpRequest, identity: Identity, form: RouteForm, created: Route | None = None, secret: str = ""
) -> HttpResponse:
    visible = routes.visible(None, None, identity)
    latest = deliveries.latest(identity, route_id=None, state=None, before=None, limit=_MAX_DELIVERIES)
    changeable = {route.pk for route in visible if _may_change(route, identity)}
    context = {
        "form": form,
        "created": created,
        "secret": secret,
        "routes": [
            {**shown, **_words(route, shown), "may_change": route.pk in changeable}
            for route, shown in zip(visible, routes.represent(visible), strict=True)
        ],
        "deliveries": [{**_delivery(item), "may_change": item["route_id"] in changeable} for item in latest],
    }
    response = show(request, identity, "notifications/page.html", context, status=400 if form.errors else 200)
    response["Cache-Control"] = "no-store"
    return response


def _delivery(item: Mapping[str, Any]) -> dict[str, Any]:
    return {
        **item,
        "created_at": datetime.fromisoformat(item["created_at"]),
        "kind": item["kind"].replace("_", " "),
        "is_job": item["kind"].startswith("job_"),
    }


def _words(route: Route, shown: Mapping[str, Any]) -> dict[str, Any]:
    state = ("failed", "failing") if route.problem else ("active", "on")
    return {
        "is_webhook": route.channel == Channel.WEBHOOK,
        "target": route.target_shown,
        "kinds": ", ".join(_SHORT[kind] for kind in shown["kinds"]),
        "state": state[0] if route.is_enabled else "held",
        "word": state[1] if route.is_enabled else "off",
    }


def _may_change(route: Route, identity: Identity) -> bool:
    return route.tenant_id is None or identity.has(Role.OWNER, route.tenant_id)


@require_POST
@page
def act(request: HttpRequest, identity: Identity, route_id: int, verb: str) -> HttpResponse:
    """Test, turn on or off, or remove a route; replace the secret of a webhook, which is then shown once."""
    if verb not in _VERBS:
        raise not_found(f"action {verb}")
    route = routes.find(route_id, None, identity)
    channel = Channel(route.channel)
    if verb == "rotate":
        route, secret = routes.rotate_secret(route_id, identity)
        return _show(request, identity, RouteForm(identity), route, secret)

    def do() -> str:
        if verb == "test":
            routes.send_test(route_id, channel, identity)
            return f"a test message to {route.name} is on its way; see the list below"
        if verb == "remove":
            routes.delete(route_id, channel, identity)
            return f"{route.name} is removed"
        routes.change(route_id, channel, {"is_enabled": verb == "on"}, identity)
        return f"{route.name} is turned {verb}"

    return perform(request, "notifications", do)


@require_POST
@page
def replay(request: HttpRequest, identity: Identity, delivery_id: int) -> HttpResponse:
    """Send an ended delivery again."""

    def do() -> str:
        deliveries.replay(delivery_id, identity)
        return f"delivery {delivery_id} is sent again"

    return perform(request, "notifications", do)
