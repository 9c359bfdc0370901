"""The calendar: who has reserved which node when, used or idle; the next free slot; and what other tenants see."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from frontend.pages.calendar import view
from frontend.pages.calendar.lanes import Window, node_lanes
from scheduling.reservations.tables import Reservation
from tests.factories import make_member, make_node, make_tenant, run_cycle, submit
from tests.frontend.browsing import browser, text_of
from tests.frontend.test_endpoint_pages import rows_of
from tests.scheduling.reservations.booking import reserve

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def user(tenant):
    return make_member(tenant, name="ada")


def text(response) -> str:
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def bars(visible=None) -> dict[str, list[list[str]]]:
    now = timezone.now()
    window = Window(now - timedelta(hours=1), now + timedelta(hours=23))
    return {
        lane["node"]: [[bar["kind"] for bar in row] for row in lane["rows"]] for lane in node_lanes(window, visible)
    }


def test_calendar_shows_who_has_reserved_what_and_whether_it_is_used(user, tenant):
    node = make_node(gpus=4, name="n1")
    active = reserve(user, tenant, 0, 120, gpus=2, note="the paper")
    reserve(user, tenant, 300, 60, gpus=4)
    assert bars() == {"n1": [["idle", "planned"]]}
    submit(user, tenant)
    run_cycle()
    node.start_all()
    assert bars() == {"n1": [["used", "planned"]]}
    shown = text(browser(user).get("/calendar/"))
    assert f"reservation {active.pk}: 2 GPUs of nlp by ada, active, 1 used, the paper" in shown
    assert "Planned and active times in UTC" in shown


def test_calendar_lists_the_reservations_that_begin_first(user, tenant, monkeypatch):
    """A series books its later ones later."""
    make_node(gpus=4)
    first, later = reserve(user, tenant, 60, 60), reserve(user, tenant, 300, 60)
    monkeypatch.setattr(view, "MAX_LISTED", 1)
    page = text_of(browser(user).get("/calendar/"))
    assert [f"reservation-{each.pk}" in page for each in (first, later)] == [True, False]
    note = "More follow: this list ends after 1."
    assert note in page
    monkeypatch.setattr(view, "MAX_LISTED", 2)
    assert note not in text_of(browser(user).get("/calendar/"))


def test_reservations_that_overlap_have_rows_of_their_own(user, tenant):
    make_node(gpus=4, name="n1")
    for start, minutes in ((60, 120), (90, 30), (200, 30)):
        reserve(user, tenant, start, minutes)
    assert bars() == {"n1": [["planned", "planned"], ["planned"]]}


def test_reservation_of_another_tenant_has_no_name(user, tenant):
    """A08"""
    make_node(gpus=4, name="n1")
    secret = make_tenant("secret")
    reservation = reserve(make_member(secret, name="eve"), secret, 60, 60, note="the secret")
    response = browser(user).get("/calendar/")
    shown = text(response)
    assert "1 GPU of another tenant" in shown
    assert not re.search(r"secret|eve\b", shown)
    rows = rows_of("reservations", user)
    assert rows.keys() == {"others"} and str(reservation.pk) not in rows


def test_next_free_slot_is_found_and_booked(user, tenant):
    make_node(gpus=2, name="n1")
    first = reserve(user, tenant, 0, 60, gpus=2)
    shown = browser(user).get("/calendar/?gpus=2&hours=1")
    assert f"on n1; reservation {first.pk} holds some until" in text(shown)
    start = re.search(r'name="from" value="([^"]+)"', shown.content.decode())
    assert start is not None
    values = {"tenant": "nlp", "gpus": "2", "hours": "1", "from": start[1]}
    assert browser(user).post("/calendar/book/", values).status_code == 302
    assert Reservation.objects.latest("id").starts_at == first.ends_at


@pytest.mark.parametrize("query", ["gpus=x&hours=1", "gpus=1&hours=nan", "gpus=9&hours=1", "gpus=0&hours=1"])
def test_impossible_slot_is_refused_in_words(user, query):
    make_node(gpus=2)
    response = browser(user).get(f"/calendar/?{query}")
    assert response.status_code == 200
    assert 'role="alert"' in response.content.decode()


def test_buttons_cancel_and_end_reservations(user, tenant):
    make_node(gpus=2)
    active, planned = reserve(user, tenant, 0, 60), reserve(user, tenant, 60, 60)
    browser(user).post(f"/calendar/{active.pk}/shorten/")
    browser(user).post(f"/calendar/{planned.pk}/cancel/")
    assert list(Reservation.objects.order_by("id").values_list("state", flat=True)) == ["released", "cancelled"]


@pytest.mark.parametrize(("role", "is_shown"), [("viewer", False), ("member", False), ("owner", True)])
def test_buttons_are_for_those_who_may_end_the_reservation(user, tenant, role, is_shown):
    """Its own submitter, and owners of the tenant."""
    make_node(gpus=1)
    reservation = reserve(user, tenant, 60, 60)
    path = f"/calendar/{reservation.pk}/cancel/"
    other = browser(make_member(tenant, name="kim", role=role))
    shown = other.get("/calendar/").content.decode()
    assert (f"reservation-{reservation.pk}" in shown, path in shown) == (True, is_shown)
    assert path in browser(user).get("/calendar/").content.decode()
    other.post(path)
    reservation.refresh_from_db()
    assert (reservation.state == "cancelled") == is_shown


def region(page: str, name: str) -> str:
    """Return the words of the calendar's lanes in a page."""
    found = re.search(rf'(?s)<div id="{name}"[^>]*>(.*?)<time ', page)
    assert found, page
    return " ".join(re.sub(r"<[^>]+>", " ", found[1]).split())


def test_fleet_shows_the_lanes_of_the_calendar_above_its_map(user, tenant):
    make_node(gpus=2, name="n1")
    reserve(user, tenant, 0, 60, note="the deadline")
    reserve(user, tenant, 60 * 24 * 2, 60)
    fleet = text_of(browser(user).get("/fleet/"))
    assert region(fleet, "bookings") == region(text_of(browser(user).get("/calendar/?days=1")), "calendar").replace(
        "Reserved GPUs by node, UTC ", ""
    )
    assert "1 GPU of nlp by ada, active, idle, the deadline" in region(fleet, "bookings")
    assert fleet.index('id="bookings"') < fleet.index('data-view="fleet"')
    assert 'href="/calendar/"' in fleet and 'hx-get="/calendar/"' in fleet


def test_fleet_has_one_line_without_reservations_and_hides_those_of_others(user):
    make_node(gpus=2, name="n1")
    assert "No GPUs are reserved in this time." in text_of(browser(user).get("/fleet/"))
    secret = make_tenant("secret")
    reserve(make_member(secret, name="eve"), secret, 0, 60)
    shown = region(text_of(browser(user).get("/fleet/")), "bookings")
    assert "1 GPU of another tenant" in shown and not re.search(r"secret|eve", shown)


def test_reload_for_a_region_carries_no_rows(user):
    """The script already has newer ones, and those of 200 nodes are half a megabyte."""
    make_node(gpus=2, name="n1")
    whole, again = (text_of(browser(user).get("/fleet/", headers=headers)) for headers in ({}, {"X-Again": "1"}))
    assert "data-snapshot" in whole and "data-snapshot" not in again
    assert 'id="bookings"' in again
