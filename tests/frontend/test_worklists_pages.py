"""The server-rendered queue and list of jobs: filters, paging and bulk actions."""

import re

import pytest

from gpusched.lib.api.problems import Problem
from gpusched.lib.db.sql import query
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.states import Role
from scheduling.whatif import current
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import browser, found, text_of

pytestmark = pytest.mark.django_db


def keys(page):
    return [int(key) for key in re.findall(r'<tr data-key="(\d+)"', page)]


@pytest.fixture
def other():
    return make_tenant("other")


class TestQueue:
    def test_queue_page_applies_url_filters_and_order(self, nlp, member, other):
        stranger = make_member(other)
        small, large = submit(member, nlp, gpu_count=1, name="small"), submit(member, nlp, gpu_count=4, name="large")
        foreign = submit(stranger, other)
        admin = browser(make_user(admin=True))
        assert set(keys(text_of(admin.get("/queue/")))) == {small, large, foreign}
        assert keys(text_of(admin.get("/queue/?tenant=nlp&sort=-gpus"))) == [large, small]
        assert keys(text_of(admin.get("/queue/?q=smal"))) == [small]
        assert set(keys(text_of(browser(member).get("/queue/?sort=gpus")))) == {small, large}
        assert "No waiting jobs match this filter" in text_of(admin.get("/queue/?user=nobody"))

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

    @pytest.mark.parametrize("requested", ["?sort=secret", "?tenant=" + "x" * 300, "?q=%00", "?from=x", "?from=-1"])
    def test_invalid_queue_filter_is_reported(self, requested, nlp, member):
        job_id = submit(member, nlp)
        response = browser(member).get(f"/queue/{requested}")
        assert response.status_code == 200
        is_refused = requested.startswith(("?sort", "?tenant"))
        assert keys(text_of(response)) == ([] if is_refused else [job_id])
        # Where the page's script says the same in its own words, so that it is not said twice.
        assert text_of(response).split('data-live="queue')[1].count("not valid") == is_refused
        assert text_of(response).count("not valid") == is_refused

    def test_long_queue_has_next_link_without_script(self, nlp, member):
        ids = [submit(member, nlp) for _ in range(103)]
        client = browser(member)
        page = text_of(client.get("/queue/"))
        assert len(keys(page)) == 100
        further = re.search(r'href="(/queue/\?from=100)"', page)
        assert further
        rest = text_of(client.get(further[1]))
        assert sorted(keys(page) + keys(rest)) == ids
        assert "Further down" not in rest


class TestJobs:
    def test_jobs_page_filters_like_rest(self, nlp, member):
        waiting, cancelled = submit(member, nlp, name="train-a"), submit(member, nlp, name="train-b")
        client = browser(member)
        client.post(f"/jobs/{cancelled}/cancel/")
        assert keys(text_of(client.get("/jobs/"))) == [cancelled, waiting]
        assert keys(text_of(client.get("/jobs/?state=final"))) == [cancelled]
        assert keys(text_of(client.get("/jobs/?name=N-A"))) == [waiting]
        assert keys(text_of(client.get(f"/jobs/?user={member.username}&state=waiting"))) == [waiting]
        assert keys(text_of(client.get("/jobs/?submitted_after=2000-01-31"))) == [cancelled, waiting]
        assert keys(text_of(client.get("/jobs/?submitted_after=2099-01-31"))) == []
        refused = text_of(client.get("/jobs/?state=odd"))
        assert "state: there is no state &#x27;odd&#x27;" in refused.split('data-live="jobs"')[1]
        assert refused.count("there is no state") == 1
        assert "waiting, live, final" in refused

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

    def test_jobs_page_links_to_older_jobs(self, nlp, member):
        ids = [submit(member, nlp) for _ in range(102)]
        client = browser(member)
        page = text_of(client.get("/jobs/"))
        older = re.search(r'href="(/jobs/\?cursor=[^"]+)"', page)
        assert older
        rest = text_of(client.get(older[1].replace("&amp;", "&")))
        assert keys(page) + keys(rest) == ids[::-1]
        assert "cursor: is not a cursor of this list" in text_of(client.get("/jobs/?cursor=nonsense"))


class TestHiddenJobs:
    """The Overview counts everybody's jobs; who follows a number from there to fewer rows is told why."""

    @pytest.mark.parametrize("path", ["/queue/", "/jobs/", "/queue/?reason=quota_wait", "/jobs/?state=running"])
    def test_lists_tell_members_about_hidden_jobs(self, path, nlp, member, other):
        assert "of other tenants" in text_of(browser(member).get(path))
        assert "of other tenants" not in text_of(browser(make_user(admin=True)).get(path))

    def test_jobs_template_counts_like_script(self, nlp, member):
        client = browser(member)
        submit(member, nlp)
        assert '<p class="summary">1 job.</p>' in text_of(client.get("/jobs/"))
        for _ in range(100):
            submit(member, nlp)
        message = '<p class="summary">101 jobs, 100 of them listed. <span class="nowrap">Counted '
        page = text_of(client.get("/jobs/"))
        assert message in page
        older = found(r'href="(/jobs/\?cursor=[^"]+)"', page).replace("&amp;", "&")
        assert message.replace("100 of", "1 of") in text_of(client.get(older))
        submit(member, nlp, name="sweep", array=ArrayRequest(count=3))
        for _ in range(100):
            submit(member, nlp)
        message = (
            '<p class="summary">202 jobs, 100 of them listed; an array counts as one (204 with its elements). <span'
        )
        assert message in text_of(client.get("/jobs/")), "the array is among the others"
        submit(member, nlp, name="sweep", array=ArrayRequest(count=3))
        assert '<p class="summary">2 jobs; an array counts as one (6 with its elements).</p>' in text_of(
            client.get("/jobs/?name=sweep")
        )


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
def test_queue_page_shows_groups(nlp, member):
    agent = make_node(name="n1", gpus=2)
    submit(member, nlp, gpu_count=2)
    run_cycle()
    agent.start_all()
    waiting, allocated = submit(member, nlp, gpu_count=2), submit(member, nlp)
    client = browser(member)
    client.post(f"/jobs/{allocated}/hold/")
    run_cycle()
    page = text_of(client.get("/queue/"))
    assert keys(page) == [waiting, allocated]
    assert re.findall(r'scope="rowgroup">([\w ]+)<', page) == ["Waits on capacity", "Held"]
    assert keys(text_of(client.get("/queue/?group=held"))) == [allocated]


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
