"""The pages of the queue and of the list of jobs: filters, the rows that they carry, and bulk actions."""

import re

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.states import Role
from scheduling.whatif import current
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import browser, carried, found, text_of

pytestmark = pytest.mark.django_db


def queued(client, path):
    """Return the ids of the window that the queue page carries."""
    [rows] = carried(client.get(path)).values()
    return rows["total"]["order"]


def listed(client, path):
    """Return the ids of the jobs that the list carries."""
    return [item["id"] for item in carried(client.get(path), "listing")["items"]]


@pytest.fixture
def other():
    return make_tenant("other")


class TestQueue:
    def test_queue_page_applies_url_filters_and_order(self, nlp, member, other):
        stranger = make_member(other)
        small, large = submit(member, nlp, gpu_count=1, name="small"), submit(member, nlp, gpu_count=4, name="large")
        foreign = submit(stranger, other)
        admin = browser(make_user(admin=True))
        assert set(queued(admin, "/queue/")) == {small, large, foreign}
        assert queued(admin, "/queue/?tenant=nlp&sort=-gpus") == [large, small]
        assert queued(admin, "/queue/?q=smal") == [small]
        assert queued(browser(member), "/queue/?sort=gpus") == [small, large]
        assert queued(admin, "/queue/?user=nobody") == []

    def test_queue_filters_without_field_are_removable(self, nlp, member):
        page = text_of(browser(member).get("/queue/?reason=gpus_busy&user=a_b&q=x&from=100"))
        assert dict(re.findall(r'data-drops="(\w+)" href="([^"]*)"', page)) == {
            "reason": "?user=a_b&amp;q=x",
            "user": "?reason=gpus_busy&amp;q=x",
        }
        assert "reason: gpus busy" in page
        assert "owner: a_b" in page

    @pytest.mark.parametrize(("path", "message"), [
        ("/queue/?tenant=gone", "tenant: gone"), ("/queue/?group=odd", "group: odd"), ("/jobs/?tenant=gone", "tenant: gone"),
    ])  # fmt: skip
    def test_unlisted_filter_value_is_shown(self, path, message, nlp, other, member):
        """Else the field says that all are shown."""
        for identity in (member, make_user(admin=True)):
            assert message in text_of(browser(identity).get(path))
        assert "data-drops" not in text_of(browser(make_user(admin=True)).get(path.split("=")[0] + "="))

    @pytest.mark.parametrize("requested", ["?sort=secret", "?q=%00", "?from=x"])
    def test_queue_page_ignores_what_the_script_ignores(self, requested, nlp, member):
        job_id = submit(member, nlp)
        assert queued(browser(member), f"/queue/{requested}") == [job_id]

    def test_too_long_queue_filter_is_an_error_of_its_topic(self, nlp, member):
        page = text_of(browser(member).get("/queue/?tenant=" + "x" * 2000))
        assert '"topics":{},"errors":{"queue:0-200?tenant=xxx' in page
        assert "unknown_topic" in page

    def test_queue_page_carries_the_first_window(self, nlp, member):
        ids = [submit(member, nlp) for _ in range(3)]
        rows = carried(browser(member).get("/queue/"))
        assert list(rows) == ["queue:0-200"]
        assert rows["queue:0-200"]["total"]["order"] == ids


class TestJobs:
    def test_jobs_page_filters_like_rest(self, nlp, member):
        waiting, cancelled = submit(member, nlp, name="train-a"), submit(member, nlp, name="train-b")
        client = browser(member)
        client.post(f"/jobs/{cancelled}/cancel/")
        assert listed(client, "/jobs/") == [cancelled, waiting]
        assert listed(client, "/jobs/?state=final") == [cancelled]
        assert listed(client, "/jobs/?name=N-A") == [waiting]
        assert listed(client, f"/jobs/?user={member.username}&state=waiting") == [waiting]
        assert listed(client, "/jobs/?submitted_after=2000-01-31") == [cancelled, waiting]
        assert listed(client, "/jobs/?submitted_after=2099-01-31") == []
        refused = carried(client.get("/jobs/?state=odd"), "listing")
        assert refused["problem"].startswith("state: there is no state 'odd'")
        assert "waiting, live, final" in refused["problem"]

    def test_jobs_filters_without_field_are_removable(self, nlp, member):
        submit(member, nlp)
        client = browser(make_user(admin=True))
        page = text_of(client.get(f"/jobs/?user={member.username}&submitted_before=2099-01-31&state=waiting,live"))
        assert dict(re.findall(r'data-drops="(\w+)" href="([^"]*)"', page)) == {
            "user": "?submitted_before=2099-01-31&amp;state=waiting%2Clive",
            "submitted_before": f"?user={member.username}&amp;state=waiting%2Clive",
        }
        assert '<option value="waiting,live" selected>waiting, on nodes</option>' in page
        assert "data-drops" not in text_of(browser(member).get(f"/jobs/?user={member.username}")), "the box says it"
        assert "<option" in text_of(client.get("/jobs/?state=odd,live"))
        assert 'href="/jobs/"' in found(
            r'(<a class="pill"[^>]*>)elements of array: 7', text_of(client.get("/jobs/?array=7"))
        )
        assert "since: 2030-01-31T08:00" in text_of(client.get("/jobs/?submitted_after=2030-01-31T08:00"))
        assert "data-drops" not in text_of(client.get("/jobs/?submitted_after=2030-01-31")), "the field shows it"
        assert "> UTC</label>" in text_of(client.get("/jobs/")), (
            "its days begin in UTC, and the times beside it are local"
        )

    def test_jobs_page_carries_first_page_and_total(self, nlp, member):
        client = browser(member)
        ids = [submit(member, nlp) for _ in range(2)]
        first = carried(client.get("/jobs/"), "listing")
        assert (first["next_cursor"], first["total"]) == (None, None)
        ids += [submit(member, nlp) for _ in range(100)]
        first = carried(client.get("/jobs/"), "listing")
        assert [item["id"] for item in first["items"]] == ids[:1:-1]
        assert first["total"]["jobs"] == 102
        older = client.get(f"/api/v1/jobs?cursor={first['next_cursor']}").json()
        assert [item["id"] for item in older["items"]] == ids[1::-1]


class TestHiddenJobs:
    """The Overview counts all users' jobs; the page explains why a link from there shows fewer rows."""

    @pytest.mark.parametrize("path", ["/queue/", "/jobs/", "/queue/?reason=quota_wait", "/jobs/?state=running"])
    def test_lists_tell_members_about_hidden_jobs(self, path, nlp, member, other):
        assert "of other tenants" in text_of(browser(member).get(path))
        assert "of other tenants" not in text_of(browser(make_user(admin=True)).get(path))


class TestSeveralAtOnce:
    def test_bulk_action_reports_each_job(self, nlp, member, other):
        mine, allocated = submit(member, nlp), submit(member, nlp)
        foreign = submit(make_member(other), other)
        client = browser(member)
        client.post(f"/jobs/{allocated}/cancel/")
        answer = client.post("/jobs/act/", {"verb": "hold", "ids": f"{mine},{allocated},{foreign},{mine}"})
        assert answer.json()["done"] == [mine]
        refused = {entry["id"]: entry["sentence"] for entry in answer.json()["refused"]}
        assert "Only a waiting job can be held" in refused[allocated]
        assert "not found" in refused[foreign].lower() or "no job" in refused[foreign].lower()
        states = {row["id"]: row["state"] for row in query("SELECT id, state FROM jobs_job")}
        assert states == {mine: "held", allocated: "cancelled", foreign: "pending"}

    def test_bulk_action_is_refused_for_viewers(self, nlp, member):
        job_id = submit(member, nlp)
        answer = browser(make_member(nlp, Role.VIEWER)).post("/jobs/act/", {"verb": "cancel", "ids": job_id}).json()
        assert answer["done"] == []
        assert "needs the role" in answer["refused"][0]["sentence"]

    @pytest.mark.parametrize(
        "requested", [{}, {"verb": "explode", "ids": "1"}, {"verb": "hold", "ids": "x"},
                  {"verb": "hold", "ids": ",".join(map(str, range(501)))}],
    )  # fmt: skip
    def test_bulk_action_rejects_invalid_requests(self, requested, member):
        assert browser(member).post("/jobs/act/", requested).status_code == 400

    def test_bulk_action_needs_post_and_csrf_token(self, member):
        assert browser(member).get("/jobs/act/").status_code == 405
        assert browser(member, enforce_csrf_checks=True).post("/jobs/act/").status_code == 403


@pytest.mark.django_db(transaction=True)
def test_queue_page_carries_groups_in_order(nlp, member):
    agent = make_node(name="n1", gpus=2)
    submit(member, nlp, gpu_count=2)
    run_cycle()
    agent.start_all()
    waiting, allocated = submit(member, nlp, gpu_count=2), submit(member, nlp)
    client = browser(member)
    client.post(f"/jobs/{allocated}/hold/")
    run_cycle()
    assert queued(client, "/queue/") == [waiting, allocated]
    assert queued(client, "/queue/?group=held") == [allocated]


def test_estimates_are_for_visible_waiting_jobs(nlp, member, monkeypatch):
    """A08; those that start at once or are held have none."""
    make_node(name="n1", gpus=1)
    submit(member, nlp, gpu_count=1, max_runtime_minutes=60)
    run_cycle()
    waiting = submit(member, nlp, gpu_count=1)
    other = make_tenant("others")
    foreign = submit(make_member(other), other, gpu_count=1)
    run_cycle()
    payload = browser(member).get(f"/queue/estimates/?ids={waiting},{foreign},x,").json()
    assert set(payload) == {str(waiting)}
    assert set(payload[str(waiting)]["estimate"]) >= {"p50_at", "p90_at", "later_than", "sentence"}
    assert payload[str(waiting)]["estimate_reason"] is None
    assert browser(member).get("/queue/estimates/").json() == {}


def test_estimates_report_overload(nlp, member, monkeypatch):
    waiting = [submit(member, nlp, gpu_count=1) for _ in range(2)]
    run_cycle()
    monkeypatch.setattr(current, "MAX_BEHIND", 1)
    payload = browser(member).get(f"/queue/estimates/?ids={waiting[0]}").json()
    message = "no estimates of the whole queue while more than 1 jobs wait: explain this job alone"
    assert payload == {str(waiting[0]): {"estimate": None, "estimate_reason": message}}


def test_failed_estimate_shows_its_problem(nlp, member, monkeypatch):
    """An opened row says why, with what is known without it; the list has no estimates until they are there."""

    def unanswered(*requested, **mode):
        raise Problem(503, "unanswered", "the answer could not be computed: it took longer than 20 s")

    make_node(name="n1", gpus=1)
    _, waiting = submit(member, nlp, gpu_count=1), submit(member, nlp, gpu_count=1)
    run_cycle()
    monkeypatch.setattr(current, "ask", unanswered)
    client = browser(member)
    page = text_of(client.get(f"/jobs/{waiting}/foreseen/"))
    assert "The answer could not be computed: it took longer than 20 s." in page
    assert "Ahead of it by priority and age" in page
    payload = client.get(f"/queue/estimates/?ids={waiting}").json()
    assert payload[str(waiting)]["estimate_reason"] == "no estimate yet: estimates are computed every few seconds"
