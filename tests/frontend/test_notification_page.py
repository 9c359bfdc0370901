"""The page of routes and webhooks: forms, refusals beside their fields, and what other people see."""

import pytest

from gpusched.protocol.states import Role
from notifications.models import Delivery, Route
from tests.factories import make_member, make_tenant, make_user
from tests.frontend.browsing import browser, found, text_of

pytestmark = pytest.mark.django_db
PATH = "/notifications/"
FIELDS = {"channel": "apprise", "name": "phone", "target": "ntfys://ntfy.example.com/s3cret-topic", "tenant": "",
          "kinds": ["job_failed"], "time_zone": "UTC"}  # fmt: skip


def test_route_is_created_tested_turned_off_and_removed(tenant):
    client = browser(make_member(tenant, name="kim"))
    page = text_of(client.post(PATH, {**FIELDS, "quiet_from": "22:00", "quiet_until": "07:00", "digest_minutes": "60"}))
    assert "Route phone is created." in page and "ntfy (ntfy.example.com)" in page
    assert "s3cret-topic" not in page
    assert "quiet 22:00 to 07:00 (UTC)" in page and "collects for 60 min" in page
    route = Route.objects.get()
    assert (route.user and route.user.username, route.digest_minutes) == ("kim", 60)
    page = text_of(client.post(f"{PATH}{route.pk}/test/", follow=True))
    assert "A test message to phone is on its way" in page and ">1</td>" in page
    Delivery.objects.update(state="failed", ended_at="2030-01-01T00:00:00Z", error="the receiver answered 500")
    page = text_of(client.get(PATH))
    assert "the receiver answered 500" in page
    page = text_of(client.post(f"{PATH}deliveries/{Delivery.objects.get().pk}/replay/", follow=True))
    assert "is sent again." in page and Delivery.objects.get().state == "pending"
    assert "Phone is turned off." in text_of(client.post(f"{PATH}{route.pk}/off/", follow=True))
    assert "Phone is turned on." in text_of(client.post(f"{PATH}{route.pk}/on/", follow=True))
    assert "Phone is removed." in text_of(client.post(f"{PATH}{route.pk}/remove/", follow=True))
    assert not Route.objects.exists()


def test_secret_of_a_webhook_is_shown_once_and_again_only_when_it_is_replaced(tenant):
    client = browser(make_member(tenant, Role.OWNER, "ada"))
    fields = {**FIELDS, "channel": "webhook", "target": "https://hooks.example.com/x", "tenant": "nlp"}
    secret = found(r'class="secret"[^>]*>(whsec_[^<]+)<', text_of(client.post(PATH, fields)))
    assert secret not in text_of(client.get(PATH))
    route = Route.objects.get()
    assert route.tenant == tenant
    assert found(r'class="secret"[^>]*>(whsec_[^<]+)<', text_of(client.post(f"{PATH}{route.pk}/rotate/"))) != secret


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": ""}, "Enter a name."), ({"kinds": []}, "Choose at least one."), ({"name": "A b"}, "Lower-case letters"),
        ({"target": "file:///etc/passwd"}, "Must be an address with one of these schemes"),
        ({"target": "ntfy://127.0.0.1/x"}, "127.0.0.1 is not a public address"),
        ({"channel": "webhook", "target": "http://10.0.0.1/"}, "10.0.0.1 is not a public address"),
        ({"quiet_from": "22:00"}, "Needs a start and an end"), ({"time_zone": "Mars"}, "Must be a time zone"),
    ],
)  # fmt: skip
def test_refusal_stands_beside_its_field(tenant, change, sentence):
    response = browser(make_member(tenant)).post(PATH, {**FIELDS, **change})
    assert response.status_code == 400
    assert sentence in text_of(response).replace("&#x27;", "'")
    assert not Route.objects.exists()


def test_name_in_use_is_a_refusal(tenant):
    client = browser(make_member(tenant))
    client.post(PATH, FIELDS)
    response = client.post(PATH, FIELDS)
    assert response.status_code == 400 and "There is already a route" in text_of(response)


def test_members_see_routes_of_their_tenant_and_cannot_change_them(tenant):
    browser(make_member(tenant, Role.OWNER)).post(PATH, {**FIELDS, "tenant": "nlp"})
    route = Route.objects.get()
    member = browser(make_member(tenant))
    page = text_of(member.get(PATH))
    assert "phone" in page and f"{PATH}{route.pk}/test/" not in page
    assert member.post(f"{PATH}{route.pk}/rotate/").status_code in (403, 404)
    member.post(f"{PATH}{route.pk}/remove/")
    assert Route.objects.exists()
    stranger = browser(make_member(make_tenant("other")))
    assert "phone</td>" not in text_of(stranger.get(PATH))
    assert stranger.post(f"{PATH}{route.pk}/remove/").status_code == 404


def test_only_admins_can_choose_incidents(tenant):
    assert 'value="incident"' not in text_of(browser(make_member(tenant)).get(PATH))
    admin = browser(make_user(admin=True))
    assert 'value="incident"' in text_of(admin.get(PATH))
    assert admin.post(PATH, {**FIELDS, "kinds": ["incident"]}).status_code == 200
