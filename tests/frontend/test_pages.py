"""The pages: access, login, banner and escaping."""

import pytest
from django.db import OperationalError

from gpusched.protocol.states import Role
from nodes.models import Node
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import HOSTILE, PAGES, browser, carried, form, text_of

pytestmark = pytest.mark.django_db

BANNER = "This is a pretend fleet"


class TestPageAccess:
    @pytest.mark.parametrize("path", [*PAGES, "/jobs/1/"])
    def test_pages_redirect_to_login_and_back(self, path):
        response = browser().get(path)
        assert (response.status_code, response["Location"]) == (302, f"/login/?next={path}")

    def test_fragment_redirects_whole_page_to_login(self):
        headers = {"HX-Request": "true", "HX-Current-URL": "http://testserver/jobs/1/"}
        response = browser().get("/jobs/1/actions/", headers=headers)
        assert (response.status_code, response.content) == (204, b"")
        assert response["HX-Redirect"] == "/login/?next=http%3A//testserver/jobs/1/"

    @pytest.mark.parametrize("path", PAGES)
    @pytest.mark.parametrize("is_admin", [False, True])
    def test_every_page_renders_empty_and_filled(self, path, is_admin, nlp, member):
        user = make_user(admin=True) if is_admin else member
        assert browser(user).get(path).status_code == 200
        make_node(name="n1")
        submit(member, nlp, gpu_count=2)
        submit(member, nlp, gpu_count=8)
        response = browser(user).get(path)
        assert response.status_code == 200
        assert text_of(response).count("<h1>") == 1

    @pytest.mark.django_db(transaction=True)
    def test_pages_render_busy_cluster(self, nlp, member):
        agent = make_node(name="n1")
        jobs = [submit(member, nlp, gpu_count=6), submit(member, nlp, gpu_count=6)]
        run_cycle()
        agent.start_all()
        for path in (*PAGES, *(f"/jobs/{job_id}/" for job_id in jobs)):
            assert browser(member).get(path).status_code == 200
        assert carried(browser(member).get("/overview/"))["overview"]["status"]["busy_gpus"] == 6

    @pytest.mark.django_db(transaction=True)
    def test_waiting_job_shows_estimate_and_advice(self, nlp, member):
        agent = make_node(name="n1")
        running = submit(member, nlp, gpu_count=6, max_runtime_minutes=60)
        run_cycle()
        agent.start_all()
        waiting = submit(member, nlp, gpu_count=4)
        run_cycle()
        client = browser(member)
        assert f"/jobs/{waiting}/foreseen/" in text_of(client.get(f"/jobs/{waiting}/"))
        assert "/foreseen/" not in text_of(client.get(f"/jobs/{running}/"))
        payload = text_of(client.get(f"/jobs/{waiting}/foreseen/"))
        assert "With 2 GPUs it would start." in payload
        assert "Starts between " in payload

    @pytest.mark.parametrize("path", ["/jobs/999999/", "/nowhere/", "/jobs/0/", "/jobs/x/"])
    def test_missing_objects_are_404(self, path, member):
        response = browser(member).get(path)
        assert response.status_code == 404
        assert "Request <code>" in text_of(response)

    def test_other_tenants_job_is_404(self, nlp, member):
        foreign = submit(make_member(other := make_tenant("other")), other, name="secret-plan")
        client = browser(member)
        for path in (f"/jobs/{foreign}/", f"/jobs/{foreign}/actions/", f"/jobs/{foreign}/foreseen/"):
            assert client.get(path).status_code == 404
        assert client.post(f"/jobs/{foreign}/cancel/").status_code == 404
        for path in PAGES:
            assert "secret-plan" not in text_of(client.get(path))

    def test_user_without_tenant_is_told_what_to_do(self):
        page = text_of(browser(make_user("newcomer")).get("/submit/"))
        assert "Ask an admin to add <b>newcomer</b> to a tenant" in page
        assert "<textarea" not in page

    def test_submit_is_hidden_from_viewers(self, nlp, member):
        job_id = submit(member, nlp)
        viewer = browser(make_member(nlp, role=Role.VIEWER, name="looker"))
        for path in ("/overview/", "/mine/", "/queue/", "/jobs/", f"/jobs/{job_id}/"):
            for client, is_offered in ((viewer, False), (browser(member), True)):
                main = text_of(client.get(path)).split("<main", 1)[1]
                assert ('href="/submit/' in main) is is_offered, path
        page = text_of(viewer.get("/submit/"))
        assert "In <b>nlp</b> you are a viewer: you can see jobs but not submit them." in page
        assert "make looker a member" in page
        assert 'data-member="" data-owner=""' in text_of(viewer.get("/jobs/"))
        assert 'data-member="nlp" data-owner=""' in text_of(browser(member).get("/jobs/"))

    def test_admin_link_is_for_staff(self, nlp, member):
        assert "/admin/" not in text_of(browser(member).get("/tenants/nlp/"))
        assert f"/admin/tenants/tenant/{nlp.pk}/change/" in text_of(browser(make_user(admin=True)).get("/tenants/nlp/"))


class TestLogin:
    def test_login_returns_to_requested_page(self, member):
        answer = {"username": member.username, "password": "correct horse battery", "next": "/queue/"}
        assert browser().post("/login/", answer)["Location"] == "/queue/"

    @pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example/", "javascript:alert(1)"])
    def test_login_never_redirects_to_other_hosts(self, target, member):
        answer = {"username": member.username, "password": "correct horse battery", "next": target}
        assert browser().post("/login/", answer)["Location"] == "/"

    def test_login_reports_wrong_password_and_keeps_name(self, member):
        page = text_of(browser().post("/login/", {"username": member.username, "password": "wrong"}))
        assert "Wrong name or password" in page
        assert f'value="{member.username}"' in page

    def test_logout_needs_post(self, member):
        client = browser(member)
        assert client.get("/logout/").status_code == 405
        assert client.post("/logout/")["Location"] == "/login/"
        assert client.get("/").status_code == 302


class TestPretendFleet:
    def test_pretend_fleet_is_labelled_on_every_page(self, nlp, member):
        make_node(name="n1")
        Node.objects.update(pretend=True)
        job_id = submit(member, nlp)
        for path in (*PAGES, f"/jobs/{job_id}/", "/nowhere/"):
            assert BANNER in text_of(browser(member).get(path)), path
        assert BANNER in text_of(browser().get("/login/"))

    def test_real_fleet_has_no_banner(self, member):
        make_node(name="n1")
        assert BANNER not in text_of(browser(member).get("/overview/"))


def test_error_page_renders_without_database(member, monkeypatch):
    def fail(*args):
        raise OperationalError("gone")

    client = browser(member, raise_request_exception=False)
    monkeypatch.setattr("frontend.live.feed.load", fail)
    monkeypatch.setattr("frontend.ui.context.query", fail)
    response = client.get("/overview/?wall=1&a=%22")
    assert response.status_code == 500
    assert "The server failed on this request" in text_of(response)
    assert 'href="/overview/?wall=1&amp;a=%22">Try again</a>' in text_of(response)
    assert "Try again</a>" not in text_of(client.get("/nowhere/"))


@pytest.mark.parametrize(
    "path",
    [
        "/submit/",
        "/submit/preview/",
        "/tokens/",
        "/notifications/",
        "/notifications/1/test/",
        "/notifications/deliveries/1/replay/",
        "/nodes/n1/cordon/",
        "/nodes/n1/gpus/1/clear/",
        "/join/",
        "/join/1/revoke/",
        "/jobs/1/cancel/",
        "/logout/",
        "/login/",
    ],
)
def test_forms_need_csrf_token(path):
    response = browser(make_user(admin=True), enforce_csrf_checks=True).post(path)
    assert response.status_code == 403
    assert "This form is too old" in text_of(response)


def test_names_are_escaped(nlp):
    owner = make_member(nlp)
    job_id = submit(
        owner, nlp, name=HOSTILE, command=[HOSTILE], environment={"A": HOSTILE}, gpu_count=0,
    )  # fmt: skip
    make_node(name="n1")
    Node.objects.update(intent="cordoned", intent_note=HOSTILE)
    nlp.display_name = HOSTILE
    nlp.save()
    client = browser(make_user(admin=True))
    client.post("/tokens/", {"name": HOSTILE, "scopes": ["read"]})
    for path in (*PAGES, f"/jobs/{job_id}/", f"/submit/?again={job_id}"):
        page = text_of(client.get(path))
        assert "<script>alert" not in page
        if path in ("/jobs/", "/queue/"):
            assert "\\u003Cscript\\u003Ealert" in page
        if path in ("/tokens/", "/tenants/", f"/jobs/{job_id}/", f"/submit/?again={job_id}"):
            assert "&lt;script&gt;alert" in page
    page = text_of(client.post("/submit/", form(name=HOSTILE, command="'", environment=HOSTILE)))
    assert "<script>alert" not in page
