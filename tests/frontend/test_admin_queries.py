"""Pages of Django admin take as many queries for many rows as for few."""

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from gpusched.protocol.states import Scope
from scheduling.reservations.tables import Reservation
from tests.factories import make_member, make_tenant, make_token, make_user

pytestmark = pytest.mark.django_db
TOKENS = "/admin/tenants/apitoken/"


def add_token(number: int) -> None:
    tenant = make_tenant()
    make_token(make_member(tenant), Scope.READ, tenant=tenant)


def add_reservation(number: int) -> None:
    tenant, at = make_tenant(), timezone.now() + timedelta(hours=number)
    Reservation.objects.create(
        tenant=tenant, user=make_member(tenant), gpus=1, starts_at=at, ends_at=at + timedelta(minutes=10), state="planned"
    )  # fmt: skip


@pytest.fixture
def root() -> Client:
    client = Client()
    client.force_login(make_user("root", admin=True))
    return client


def queries(root: Client, path: str) -> int:
    with CaptureQueriesContext(connection) as sent:
        assert root.get(path).status_code == 200
    return len(sent)


@pytest.mark.parametrize(("path", "add"), [(TOKENS, add_token), ("/admin/scheduling/reservation/", add_reservation)])
def test_list_takes_no_query_per_row(root: Client, path: str, add: Callable[[int], None]):
    add(1)
    of_one = queries(root, path)
    for number in range(2, 9):
        add(number)
    assert queries(root, path) <= of_one


def test_form_of_a_tenant_takes_one_query_per_member(root: Client):
    """Django's field for the user sends it."""
    tenant = make_tenant("nlp")
    path = f"/admin/tenants/tenant/{tenant.pk}/change/"
    make_member(tenant)
    of_one = queries(root, path)
    for _ in range(7):
        make_member(tenant)
    assert queries(root, path) - of_one <= 7


def test_tokens_are_found_by_user_and_the_page_does_not_list_all_users(root: Client):
    tenant = make_tenant("nlp")
    prefix = make_token(make_member(tenant, name="kim")).partition(".")[0]
    make_member(tenant, name="lin")
    found, other = (root.get(TOKENS, {"q": name}).content.decode() for name in ("kim", "lin"))
    assert (prefix in found, prefix in other) == (True, False)
    assert ">lin<" not in "".join(found.split())
