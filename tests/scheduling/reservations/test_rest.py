"""REST of reservations: booking, reading, changing, and what other tenants see (A08)."""

import msgspec
import pytest
from django.test import Client

from scheduling.reservations.tables import Reservation
from tests.factories import make_member, make_node, make_tenant, make_token, submit
from tests.scheduling.reservations.booking import at, reserve

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ask(user):
    """Return a function that sends a request of the member, or of another user."""

    def send(method, path, body=None, *, of=None):
        token = make_token(of or user)
        raw = msgspec.json.encode(body) if body is not None else b""
        address = f"/api/v1/reservations{path}"
        return Client().generic(
            method, address, raw, content_type="application/json", headers={"Authorization": f"Bearer {token}"}
        )

    return send


def test_booking_answers_with_the_reservation(ask, user, tenant):
    make_node(gpus=2, name="n1")
    answer = ask("POST", "", {"gpus": 2, "from": at(60), "for_seconds": 3600, "note": "the paper"})
    assert answer.status_code == 201
    booked = answer.json()
    assert (booked["status"], booked["state"], booked["kind"], booked["note"]) == (
        "booked",
        "planned",
        "hard",
        "the paper",
    )
    assert (booked["tenant"], booked["user"]) == (tenant.name, user.username)
    assert [(device["node"], device["index"]) for device in booked["devices"]] == [("n1", 0), ("n1", 1)]
    assert ask("GET", f"/{booked['id']}").json()["id"] == booked["id"]
    assert [row["id"] for row in ask("GET", "").json()["items"]] == [booked["id"]]


def test_refusal_has_a_code_and_a_next_step(ask, user, tenant):
    make_node(gpus=1)
    reserve(user, tenant, 60, 60)
    answer = ask("POST", "", {"gpus": 1, "from": at(90), "for_seconds": 3600})
    assert (answer.status_code, answer.json()["code"]) == (409, "no_room")
    assert answer.json()["next_step"].startswith("reserve from ")


def test_refusal_is_the_same_for_users_of_other_tenants_and_absent_ones(ask, user, tenant):
    make_node(gpus=1)
    make_member(make_tenant("vision"), name="zoe")

    def book(name):
        return ask("POST", "", {"gpus": 1, "from": at(60), "for_seconds": 3600, "users": [name]}).json()

    messages = [book(name)["errors"][0]["message"].replace(name, "…") for name in ("zoe", "absent")]
    assert messages == ["there is no user '…', or not in this tenant"] * 2
    assert book(user.username)["users"] == [user.username]


def test_dry_run_books_nothing(ask):
    make_node(gpus=1)
    assert ask("POST", "?dry_run=true", {"gpus": 1, "for_seconds": 3600}).status_code == 200
    assert not Reservation.objects.exists()


def test_next_slot_begins_when_the_reservation_in_the_way_ends(ask, user, tenant):
    make_node(gpus=1, name="n1")
    first = reserve(user, tenant, 0, 60)
    slot = ask("GET", "/next-slot?gpus=1&for_seconds=3600").json()
    assert slot["starts_at"] == first.ends_at.isoformat().replace("+00:00", "Z")
    assert slot["nodes"] == ["n1"]
    assert f"reservation {first.pk} holds some until" in slot["blocker"]


def test_next_slot_is_unknown_beside_a_job_without_time_limit(ask, user, tenant):
    from tests.factories import run_cycle

    node = make_node(gpus=1)
    submit(user, tenant)
    run_cycle()
    node.start_all()
    assert ask("GET", "/next-slot?gpus=1&for_seconds=3600").json()["starts_at"] is None


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("?gpus=x&for_seconds=60", "gpus"),
        ("?gpus=1&for_seconds=1", "for_seconds"),
    ],
)
def test_next_slot_names_a_wrong_parameter(ask, query, field):
    make_node(gpus=1)
    answer = ask("GET", f"/next-slot{query}")
    assert answer.status_code == 400
    assert field in {error["field"] for error in answer.json()["errors"]}


def test_reservations_of_other_tenants_are_hidden(ask, user, tenant):
    """A08"""
    make_node(gpus=1)
    reservation = reserve(user, tenant)
    stranger = make_member(make_tenant())
    assert ask("GET", "", of=stranger).json()["items"] == []
    paths = (("GET", ""), ("POST", "/cancel"), ("POST", "/shorten"))
    for method, verb in paths:
        hidden = ask(method, f"/{reservation.pk}{verb}", of=stranger)
        missing = ask(method, f"/{reservation.pk + 1}{verb}", of=stranger)
        assert (hidden.status_code, missing.status_code) == (404, 404)
        assert hidden.json()["detail"].replace(str(reservation.pk), "N") == missing.json()["detail"].replace(
            str(reservation.pk + 1), "N"
        )


def test_list_is_filtered_by_state_and_time(ask, user, tenant):
    make_node(gpus=1)
    early, late = reserve(user, tenant, 60, 60), reserve(user, tenant, 600, 60)
    ask("POST", f"/{late.pk}/cancel", {})

    def ids(query: str) -> list[int]:
        return [row["id"] for row in ask("GET", query).json()["items"]]

    assert ids("?state=planned,active") == [early.pk]
    assert ids("?state=cancelled") == [late.pk]
    assert ids(f"?until={at(300).replace('+', '%2B')}") == [early.pk]
    assert ids(f"?from={at(300).replace('+', '%2B')}") == [late.pk]
    assert ids("?limit=1") == [late.pk]
    assert ask("GET", "?state=over").status_code == 400


def test_lease_is_renewed_and_shortened(ask):
    make_node(gpus=1)
    lease = ask("POST", "", {"gpus": 1, "for_seconds": 600, "lease": True}).json()
    assert (lease["state"], lease["lease"]) == ("active", True)
    renewed = ask("POST", f"/{lease['id']}/renew", {"for_seconds": 7200}).json()
    assert renewed["ends_at"] > lease["ends_at"]
    ended = ask("POST", f"/{lease['id']}/shorten").json()
    assert (ended["state"], ended["status"]) == ("released", "shortened")
