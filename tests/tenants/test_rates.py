"""Prices of GPU-hours: from when to when, never two at once, and what has been priced keeps its price."""

from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpusched.lib.models import AuditEntry
from scheduling.engine.board.shapes import is_model
from tenants.billing import rates
from tenants.models import Rate, UsageRefund
from tests.api.calls import call
from tests.factories import make_token
from tests.tenants.test_usage import START, entry, used

pytestmark = pytest.mark.django_db
A100 = "NVIDIA A100-SXM4-80GB"


def set_rate(admin, status=201, **fields):
    answer = call("POST", "/api/v1/rates", admin, {"gpu_model": "A100", "price_per_gpu_hour": 2.5, **fields})
    assert answer.status_code == status, answer.content
    return answer.json()


def make_rate(model, price, begin, end=None):
    return Rate.objects.create(
        gpu_model=model, price_per_gpu_hour=price, starts_at=START + timedelta(hours=begin),
        ends_at=None if end is None else START + timedelta(hours=end),
    )  # fmt: skip


class TestCost:
    def test_each_hour_has_the_price_of_its_time(self, tenant, user):
        make_rate("A100", 2, 0, 10)
        make_rate("A100", 3, 10)
        entry(tenant, user, hours=4, at=START + timedelta(hours=8), gpus=0.5)
        [item] = used(make_token(user), "user")["items"]
        assert (item["cost"], item["unpriced_gpu_seconds"]) == (0.5 * (2 * 2 + 2 * 3), 0)

    def test_longest_name_applies_then_the_rate_of_every_model(self, tenant, user):
        make_rate("*", 1, 0)
        make_rate("A100", 2, 0)
        make_rate("A100-SXM4-80GB", 5, 0, 1)
        entry(tenant, user, hours=3)
        entry(tenant, user, hours=2, job=2, model="NVIDIA T4")
        costs = {item["key"]: item["cost"] for item in used(make_token(user), "model")["items"]}
        assert costs == {A100: 5 + 2 + 2, "NVIDIA T4": 2.0}

    def test_use_without_a_rate_is_reported_and_costs_nothing(self, tenant, user):
        make_rate("H100", 9, 0)
        make_rate("A100", 9, 2, 3)
        entry(tenant, user, hours=4)
        total = used(make_token(user))["total"]
        assert (total["cost"], total["unpriced_gpu_seconds"]) == (9.0, 3 * 3600)

    @pytest.mark.parametrize("by", ["user", "job", "model", "day"])
    def test_refund_has_the_value_of_its_cost(self, tenant, user, by):
        make_rate("A100", 2, 0)
        UsageRefund.objects.create(entry=entry(tenant, user, hours=30), reason="node_lost")
        entry(tenant, user, hours=1, job=2)
        answer = used(make_token(user), by)
        assert (answer["total"]["cost"], answer["total"]["refunded_cost"]) == (2.0, 60.0)
        assert sum(item["cost"] for item in answer["items"]) == 2.0
        assert answer["currency"] == "credits"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spans=st.lists(
        st.tuples(st.sampled_from(["*", "A100", "A100-SXM4-80GB"]), st.integers(0, 9), st.integers(1, 6)), max_size=5
    )
)
def test_periods_of_a_model_never_overlap_and_have_the_most_specific_rate(spans):
    with transaction.atomic():
        for number, (model, begin, hours) in enumerate(spans):
            try:
                with transaction.atomic():
                    make_rate(model, number, begin, begin + hours)
            except IntegrityError:
                continue  # such a time is taken
        stored = list(Rate.objects.all())
        periods = rates.price_periods([A100])
        transaction.set_rollback(True)
    for hour in range(16):
        at = START + timedelta(hours=hour, minutes=30)
        closest = sorted(
            (r for r in stored if r.starts_at <= at and (r.ends_at is None or at < r.ends_at)),
            key=lambda r: ["A100-SXM4-80GB", "A100", "*"].index(r.gpu_model),
        )
        existing = [p.price for p in periods if p.starts_at <= at and (p.ends_at is None or at < p.ends_at)]
        assert existing == [r.price_per_gpu_hour for r in closest[:1]]


@pytest.mark.parametrize("word", ["A100", "a100-sxm4", "100", "H100", "A100-SXM4-80GB MIG", "*a"])
def test_name_matches_as_in_limits(word):
    assert rates.matches_model(word, A100) == is_model(word, A100)


class TestSetting:
    def test_next_rate_ends_the_previous_one(self, admin):
        set_rate(admin)
        later = timezone.now() + timedelta(days=3)
        rate_ids = set_rate(admin, price_per_gpu_hour=3, starts_at=later.isoformat(), gpu_model="a100")
        first, second = call("GET", "/api/v1/rates", admin).json()["items"]
        assert first["ends_at"] == second["starts_at"] == rate_ids["starts_at"]
        assert second["ends_at"] is None and second["created_by"] == "root"

    def test_past_keeps_its_price(self, admin):
        set_rate(admin)
        long_ago = "2020-01-01T00:00:00Z"
        refused = set_rate(admin, 409, starts_at=long_ago)
        assert refused["code"] == "rate_overlaps"
        previous = timezone.now() - timedelta(days=1)
        assert set_rate(admin, starts_at=long_ago, ends_at=previous.isoformat()), "a time without a rate may get one"
        assert Rate.objects.filter(ends_at=None).count() == 1

    def test_more_specific_rate_does_not_reprice_the_past(self, admin, tenant, user):
        """A100 keeps the price that the rate of every model gave it."""
        make_rate("*", 1, 0)
        entry(tenant, user, hours=2)
        past, later = START.isoformat(), START + timedelta(hours=1)
        for fields in ({}, {"ends_at": later.isoformat()}, {"gpu_model": "H100"}):
            assert set_rate(admin, 409, starts_at=past, **fields)["code"] == "rate_overlaps"
        assert used(make_token(user))["total"]["cost"] == 2.0
        set_rate(admin, gpu_model="A100")
        previous = START - timedelta(hours=5)
        set_rate(admin, starts_at=previous.isoformat(), ends_at=past)  # nothing had a price then
        assert used(make_token(user))["total"]["cost"] == 2.0

    def test_two_names_of_a_model_do_not_price_its_past_twice(self, admin, tenant, user):
        make_rate("80GB", 1, 0, 5)
        make_rate("A100", 1, 5, 9)
        for begin in (0, 5):
            times = {"starts_at": (START + timedelta(hours=begin)).isoformat()}
            times["ends_at"] = (START + timedelta(hours=begin + 4)).isoformat()
            # That the first is of the same model only the ledger tells.
            set_rate(admin, 201 if begin == 0 else 409, gpu_model="A100-SXM4", **times)
            Rate.objects.filter(gpu_model="A100-SXM4").delete()
            entry(tenant, user, hours=1, job=begin + 1)
            set_rate(admin, 409, gpu_model="A100-SXM4", **times)

    def test_hours_without_a_price_get_one(self, admin, tenant, user):
        make_rate("A100", 2, 0)
        entry(tenant, user, hours=2)
        entry(tenant, user, hours=3, job=2, model="NVIDIA T4")
        set_rate(admin, gpu_model="*", starts_at=START.isoformat())
        assert used(make_token(user))["total"]["cost"] == 2 * 2 + 3 * 2.5

    def test_database_rejects_two_concurrent_rates(self):
        make_rate("A100", 1, 0, 5)
        make_rate("A100", 1, 5)
        with pytest.raises(IntegrityError, match="rate_no_overlap"), transaction.atomic():
            make_rate("a100", 2, 4, 6)

    def test_rate_ends_now_and_a_planned_one_is_deleted(self, admin):
        now = set_rate(admin)["id"]
        planned = set_rate(admin, starts_at=(timezone.now() + timedelta(days=1)).isoformat())["id"]
        assert call("DELETE", f"/api/v1/rates/{planned}", admin).status_code == 204
        [remaining] = Rate.objects.all()
        assert (remaining.pk, remaining.ends_at) == (now, None), "the one before goes on"
        for _ in range(2):
            assert call("DELETE", f"/api/v1/rates/{now}", admin).status_code == 204
        ended = Rate.objects.get().ends_at
        assert ended is not None and ended <= timezone.now()

    def test_explicit_end_stays_when_the_next_rate_is_deleted(self, admin):
        moment = (timezone.now() + timedelta(days=1)).isoformat()
        first = set_rate(admin, ends_at=moment)
        planned = set_rate(admin, starts_at=moment)["id"]
        assert call("DELETE", f"/api/v1/rates/{planned}", admin).status_code == 204
        [remaining] = call("GET", "/api/v1/rates", admin).json()["items"]
        assert (remaining["id"], remaining["ends_at"]) == (first["id"], first["ends_at"])

    def test_first_of_three_rates_continues_until_the_third(self, admin):
        day, after, late = ((timezone.now() + timedelta(days=days)).isoformat() for days in (1, 2, 3))
        set_rate(admin)
        second = set_rate(admin, starts_at=day, ends_at=after)["id"]
        third = set_rate(admin, starts_at=late)
        assert call("DELETE", f"/api/v1/rates/{second}", admin).status_code == 204
        first, _ = call("GET", "/api/v1/rates", admin).json()["items"]
        assert first["ends_at"] == third["starts_at"]
        assert call("DELETE", f"/api/v1/rates/{third['id']}", admin).status_code == 204
        assert Rate.objects.get().ends_at is None

    def test_each_rate_change_is_audited(self, admin):
        first = set_rate(admin)["id"]
        planned = set_rate(admin, starts_at=(timezone.now() + timedelta(days=1)).isoformat())
        for rate in (planned["id"], first, first):
            assert call("DELETE", f"/api/v1/rates/{rate}", admin).status_code == 204
        stored = AuditEntry.objects.filter(action__startswith="rate").order_by("id")
        answer = [(row.action, row.subject, row.before or {}, row.after or {}) for row in stored]
        assert [(action, subject) for action, subject, _, _ in answer] == [
            ("rate.set", f"rate {first} of A100"),
            ("rate.change", f"rate {first} of A100"),
            ("rate.set", f"rate {planned['id']} of A100"),
            ("rate.end", f"rate {planned['id']} of A100"),
            ("rate.change", f"rate {first} of A100"),
            ("rate.end", f"rate {first} of A100"),
        ]
        shortened, back, longer, over = answer[1], answer[3], answer[4], answer[5]
        assert shortened[2:] == ({"ends_at": None}, {"ends_at": planned["starts_at"]})
        assert longer[2:] == ({"ends_at": planned["starts_at"]}, {"ends_at": None})
        assert (back[2]["price_per_gpu_hour"], back[3]) == ("2.5000", {})
        assert (over[2], set(over[3])) == ({"ends_at": None}, {"ends_at"})

    @pytest.mark.parametrize(
        ("fields", "field"),
        [
            ({"price_per_gpu_hour": -1}, "price_per_gpu_hour"),
            ({"price_per_gpu_hour": 1e300}, "price_per_gpu_hour"),
            ({"price_per_gpu_hour": 0.00001}, "price_per_gpu_hour"),
            ({"price_per_gpu_hour": "2"}, "price_per_gpu_hour"),
            ({"gpu_model": ""}, "gpu_model"),
            ({"gpu_model": "A" * 101}, "gpu_model"),
            ({"gpu_model": "A\x00"}, "gpu_model"),
            ({"starts_at": "soon"}, "starts_at"),
            ({"starts_at": "2030-01-02", "ends_at": "2030-01-01"}, "ends_at"),
            ({"ends_at": "2020-01-01"}, "ends_at"),
            ({"price": 1}, "price"),
        ],
    )
    def test_wrong_rate_is_rejected_by_name(self, admin, fields, field):
        """A55"""
        assert set_rate(admin, 400, **fields)["errors"][0]["field"] == field
        assert not Rate.objects.exists()


class TestAdmin:
    @pytest.fixture
    def browser(self, admin):
        from django.contrib.auth.models import User

        browser = Client()
        browser.force_login(User.objects.get(username="root"))
        return browser

    def form(self, **fields):
        now = datetime.now(UTC)
        return {
            "gpu_model": "A100", "price_per_gpu_hour": "2.5", "starts_at_0": "", "starts_at_1": "", "ends_at_0": "",
            "ends_at_1": "", **fields, "_save": now.isoformat(),
        }  # fmt: skip

    def test_admin_sets_a_rate_by_the_same_rules(self, browser):
        assert browser.post("/admin/tenants/rate/add/", self.form()).status_code == 302
        assert browser.post("/admin/tenants/rate/add/", self.form(price_per_gpu_hour="3")).status_code == 302
        first, second = Rate.objects.order_by("starts_at")
        assert first.ends_at == second.starts_at and second.ends_at is None
        assert second.created_by == "root"
        page = browser.post("/admin/tenants/rate/add/", self.form(starts_at_0="2020-01-01", starts_at_1="00:00:00"))
        assert "there is a rate of A100 for a part of that time" in page.content.decode()
        assert Rate.objects.count() == 2

    def test_admin_sets_a_rate_that_starts_now_and_has_an_end(self, browser):
        form = self.form(ends_at_0="2100-01-01", ends_at_1="00:00:00")
        assert browser.post("/admin/tenants/rate/add/", form).status_code == 302
        assert Rate.objects.get().ends_at == datetime(2100, 1, 1, tzinfo=UTC)

    def test_past_rates_are_not_edited(self, browser):
        rate = make_rate("A100", 1, 0)
        assert browser.post(f"/admin/tenants/rate/{rate.pk}/change/", self.form()).status_code == 403
        assert browser.post(f"/admin/tenants/rate/{rate.pk}/delete/", {"post": "yes"}).status_code == 403
        assert browser.get("/admin/tenants/rate/").status_code == 200
