"""Routes and deliveries in Django admin: list, filter, switch, test and delete, without secrets."""

import pytest
from django.test import Client

from gpusched.lib.models import AuditEntry
from gpusched.protocol.states import Role
from notifications import routes
from notifications.models import Delivery, Route
from notifications.sending.sender import Sender
from tenants.auth.identity import Identity
from tests.factories import identity_for, make_member, make_tenant, make_user
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import mail, webhook, work

pytestmark = pytest.mark.django_db(transaction=True)
LIST = "/admin/notifications/route/"
DELIVERIES = "/admin/notifications/delivery/"
SECRET_TARGET = "mailtos://ada:hunter22@smtp.example.com?to=ada@example.com"


@pytest.fixture
def browser() -> Client:
    client = Client()
    client.force_login(make_user("root", admin=True))
    return client


@pytest.fixture
def boss() -> Identity:
    return identity_for(make_user("boss", admin=True))


@pytest.fixture
def own() -> Route:
    """A user's own route, which the admin does not see by REST."""
    return mail(make_member(make_tenant("nlp"), name="ada"), SECRET_TARGET)


@pytest.fixture
def hook(loopback: None, receiver: Receiver) -> Route:
    owner = make_member(tenant := make_tenant("vision"), Role.OWNER, "eve")
    return webhook(owner, receiver.url, tenant, name="ci")


def text(browser: Client, path: str) -> str:
    answer = browser.get(path)
    assert answer.status_code == 200, answer.content
    return answer.content.decode()


def act(browser: Client, action: str, *chosen: Route) -> str:
    values = {"action": action, "_selected_action": [route.pk for route in chosen]}
    answer = browser.post(LIST, values, follow=True)
    assert answer.status_code == 200
    return answer.content.decode()


def entries() -> list[tuple[str, str, str, str]]:
    rows = AuditEntry.objects.filter(action__regex="^(route|webhook)[.]", via="admin").order_by("id")
    return list(rows.values_list("actor", "via", "action", "subject"))


def test_list_shows_and_filters_routes_of_all_owners(browser, own, hook):
    page = text(browser, LIST)
    assert "user ada" in page and "E-mail (ada@example.com)" in page
    assert "tenant vision" in page and "http://127.0.0.1" in page
    Route.objects.filter(pk=hook.pk).update(problem="refused with 500", is_enabled=False)
    for query, shown, hidden in (
        ("failing=yes", "tenant vision", "user ada"),
        ("failing=no", "user ada", "tenant vision"),
        ("is_enabled__exact=0", "tenant vision", "user ada"),
        ("channel__exact=apprise", "user ada", "tenant vision"),
        ("q=ada", "user ada", "tenant vision"),
    ):
        page = text(browser, f"{LIST}?{query}")
        assert shown in page and hidden not in page, query


def test_no_page_shows_a_secret(browser, own, hook, boss):
    hook, _ = routes.rotate_secret(hook.pk, boss)
    for route in (own, hook):
        delivery = routes.send_test_locked(route, boss)
        pages = (LIST, f"{LIST}{route.pk}/change/", f"{LIST}{route.pk}/delete/", f"{DELIVERIES}{delivery}/change/")
        for path in pages:
            page = text(browser, path)
            for secret in ("hunter22", route.sealed_target, route.sealed_secret, route.sealed_previous_secret):
                assert not secret or secret not in page, path


def test_actions_turn_routes_off_and_on_with_their_pending_deliveries(browser, own, hook, boss):
    routes.send_test_locked(own, boss)
    assert "2 routes disabled" in act(browser, "disable", own, hook)
    assert set(Route.objects.values_list("is_enabled", flat=True)) == {False}
    assert Delivery.objects.get(route=own).state == "failed"
    assert "1 route enabled" in act(browser, "enable", own)
    own.refresh_from_db()
    assert own.is_enabled
    assert entries() == [
        ("root", "admin", "route.change", "route mail of ada"),
        ("root", "admin", "webhook.change", "webhook ci of vision"),
        ("root", "admin", "route.change", "route mail of ada"),
    ]


def test_form_changes_only_whether_the_route_is_on(browser, own):
    before = own.sealed_target
    form = {"sealed_target": "x", "target_shown": "x", "name": "x", "problem": "x"}
    assert browser.post(f"{LIST}{own.pk}/change/", form).status_code == 302
    own.refresh_from_db()
    assert (own.is_enabled, own.sealed_target, own.name, own.problem) == (False, before, "mail", "")
    assert browser.post(f"{LIST}{own.pk}/change/", {"is_enabled": "on"}).status_code == 302
    own.refresh_from_db()
    assert own.is_enabled and len(entries()) == 2


def test_test_message_reaches_the_receiver_and_its_delivery_is_shown(browser, hook, sender: Sender, receiver: Receiver):
    assert "1 route sent a test message" in act(browser, "send_tests", hook)
    button = "notifications_route_save_and_send_test"
    assert f'name="{button}"' in text(browser, f"{LIST}{hook.pk}/change/")
    form = {"is_enabled": "on", button: "1"}
    assert browser.post(f"{LIST}{hook.pk}/change/", form).status_code == 302
    work(sender)
    assert len(receiver.requests) == 2
    page = text(browser, f"{DELIVERIES}?route__id__exact={hook.pk}")
    assert "webhook ci" in page and page.count("sent") >= 2
    act(browser, "disable", hook)
    assert "webhook ci of vision is off; enable it first" in act(browser, "send_tests", hook)


def test_delete_removes_a_route_with_its_deliveries(browser, own, boss):
    routes.send_test_locked(own, boss)
    assert browser.post(f"{LIST}{own.pk}/delete/", {"post": "yes"}).status_code == 302
    assert not Route.objects.exists() and not Delivery.objects.exists()
    assert entries() == [("root", "admin", "route.delete", "route mail of ada")]


def test_deliveries_and_new_routes_cannot_be_written(browser, own, boss):
    routes.send_test_locked(own, boss)
    delivery = Delivery.objects.get()
    assert browser.post(f"{DELIVERIES}{delivery.pk}/change/", {"state": "sent"}).status_code == 403
    assert browser.post(f"{DELIVERIES}{delivery.pk}/delete/", {"post": "yes"}).status_code == 403
    assert browser.get(f"{LIST}add/").status_code == 403
    stranger = Client()
    stranger.force_login(make_member(make_tenant("other")))
    assert stranger.get(LIST).status_code == 302
