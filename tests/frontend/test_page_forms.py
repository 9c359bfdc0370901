"""Forms of the pages: errors beside fields, and actions by role and state."""

import re

import msgspec
import pytest
from django.test import Client

from gpusched.lib.db.sql import query
from gpusched.protocol.states import Role
from tenants.models import ApiToken
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import browser, form, found, text_of

pytestmark = pytest.mark.django_db


class TestSubmit:
    def test_submit_creates_job_as_typed(self, nlp, member):
        typed = form(command="python 'my file.py' --lr 0.1", priority="700", environment="A=1\r\nB=x=y\r\n", name="t")
        response = browser(member).post("/submit/", typed)
        [row] = query("SELECT * FROM jobs_job")
        assert response["Location"] == f"/jobs/{row['id']}/"
        assert row["payload"]["command"] == ["python", "my file.py", "--lr", "0.1"]
        assert row["payload"]["environment"] == {"A": "1", "B": "x=y"}
        assert (row["priority"], row["gpu_count"], row["name"]) == (700, 0, "t")

    def test_submit_keeps_script_lines(self, nlp, member):
        browser(member).post("/submit/", form(command="", script="#!/bin/sh\r\necho hi\r\n"))
        [row] = query("SELECT payload FROM jobs_job")
        assert row["payload"]["script"] == "#!/bin/sh\necho hi\n"

    @pytest.mark.django_db(transaction=True)
    def test_submit_is_idempotent(self, nlp, member):
        client = browser(member)
        key = found(r'name="key" value="([0-9a-f]{32})"', text_of(client.get("/submit/")))
        places = {client.post("/submit/", form(key=key))["Location"] for _ in range(2)}
        assert len(places) == 1
        repeated = client.post("/submit/", form(key=key, command="other"))
        assert repeated.status_code == 400
        assert "Submit again to create another one" in text_of(repeated)
        assert key not in text_of(repeated)

    @pytest.mark.parametrize(
        ("field", "value", "sentence"),
        [
            ("command", "", "enter a command, or a script below"),
            ("command", "python 'x", "a quote is not closed"),
            ("command", "a\x00b", "Null characters are not allowed"),
            ("script", "#!/bin/sh", "give either a command or a script"),
            ("gpu_count", "lots", "Enter a whole number"),
            ("gpu_count", "-1", "must be between 0 and 100000"),
            ("gpu_count", "9" * 400, "must be between 0 and 100000"),
            ("cpu_cores", "nan", "Enter a number"),
            ("priority", "5", "must be between 100 and 9999"),
            ("max_runtime_minutes", "0", "must be between 0.01"),
            ("environment", "NOVALUE", "write NAME=VALUE"),
            ("environment", "CUDA_VISIBLE_DEVICES=1", "cannot be overridden"),
            ("tenant", "other", "Select a valid choice"),
        ],
    )
    def test_submit_error_is_beside_its_field_and_keeps_values(self, field, value, sentence, nlp, member):
        make_tenant("other")
        response = browser(member).post("/submit/", form(name="kept-name", **{field: value}))
        page = text_of(response)
        assert response.status_code == 400
        visible = re.search(rf'id="e_{field}">([^<]*)<', page)
        assert visible and sentence in visible[1].replace("&#x27;", "'")
        assert 'value="kept-name"' in page
        assert query("SELECT 1 FROM jobs_job") == []

    def test_submit_shows_all_errors_at_once(self, nlp, member):
        page = text_of(browser(member).post("/submit/", form(priority="5", environment="NOVALUE", gpu_count="x")))
        assert {"priority", "environment", "gpu_count"} == set(re.findall(r'id="e_(\w+)"', page))

    def test_impossible_job_is_rejected_with_next_step(self, nlp, member):
        make_node(name="n1", gpus=2)
        page = text_of(browser(member).post("/submit/", form(gpu_count="50")))
        assert "can never start" in page
        assert "add a node that fits" in page

    def test_check_submits_nothing_and_shows_command_and_json(self, nlp, member):
        page = text_of(browser(member).post("/submit/", form(preview="1", gpu_model="A100", gpu_count="2")))
        assert query("SELECT 1 FROM jobs_job") == []
        command = found(r">(gpusched submit[^<]+)<", page).replace(" \\\n ", "")
        assert command == "gpusched submit --tenant nlp --gpus 2 --gpu-model A100 -- python train.py"

    def test_preview_follows_form(self, nlp, member):
        make_node(name="n1", gpus=2)
        client = browser(member)
        page = text_of(client.post("/submit/preview/", form(gpu_count="2", command="echo 'a b'")))
        assert "<code>a b</code>" in page
        assert "It would start now on n1." in page
        assert "&quot;gpu_count&quot;: 2" in page
        refused = text_of(client.post("/submit/preview/", form(gpu_count="3")))
        assert "It would be rejected" in refused
        assert "<html" not in refused

    def test_preview_json_is_accepted_by_api(self, nlp, member):
        from gpusched.protocol.job_request import JobRequest, validate

        page = text_of(browser(member).post("/submit/preview/", form(memory_mb="5", max_runtime_minutes="1.5")))
        visible = re.findall(r"<pre[^>]*>(\{.*?\})</pre>", page, re.S)[0].replace("&quot;", '"')
        assert validate(msgspec.json.decode(visible, type=JobRequest)) == []

    def test_job_can_be_submitted_again(self, nlp, member):
        job_id = submit(member, nlp, command=["echo", "a b"], environment={"X": "1"}, gpu_count=0)
        page = text_of(browser(member).get(f"/submit/?again={job_id}"))
        assert "echo &#x27;a b&#x27;" in page
        foreign = submit(make_member(other := make_tenant("other")), other, command=["secret-plan"])
        assert "job to submit again does not exist" not in page
        for unknown in (foreign, 999999, "odd"):
            payload = text_of(browser(member).get(f"/submit/?again={unknown}"))
            assert "secret-plan" not in payload
            assert "job to submit again does not exist" in payload

    def test_viewer_cannot_submit(self, nlp):
        client = browser(make_member(nlp, Role.VIEWER))
        assert "You cannot submit yet" in text_of(client.get("/submit/"))
        assert client.post("/submit/", form()).status_code == 400
        assert query("SELECT 1 FROM jobs_job") == []


class TestJobPage:
    def test_job_page_shows_reason_and_history(self, nlp, member):
        job_id = submit(member, nlp)
        client = browser(member)
        assert "the scheduler has not looked at it yet" in text_of(client.get(f"/jobs/{job_id}/"))
        assert "submitted" in text_of(client.get(f"/jobs/{job_id}/?tab=events"))

    @pytest.mark.django_db(transaction=True)
    @pytest.mark.parametrize(
        ("state", "verbs"),
        [
            ("pending", {"hold", "extend", "cancel"}),
            ("held", {"release", "extend", "cancel"}),
            ("running", {"requeue", "extend", "cancel"}),
        ],
    )
    def test_job_buttons_fit_its_state(self, state, verbs, nlp, member):
        agent = make_node(name="n1")
        job_id = submit(member, nlp)
        client = browser(member)
        if state == "held":
            client.post(f"/jobs/{job_id}/hold/")
        if state == "running":
            run_cycle()
            agent.start_all()
        for path in (f"/jobs/{job_id}/", f"/jobs/{job_id}/actions/"):
            assert set(re.findall(rf'action="/jobs/{job_id}/(\w+)/"', text_of(client.get(path)))) == verbs

    def test_job_buttons_act_and_confirm(self, nlp, member):
        job_id = submit(member, nlp)
        client = browser(member)
        for verb, state, message in (
            ("hold", "held", "is held."),
            ("release", "pending", "waits for its turn."),
            ("cancel", "cancelled", "is cancelled."),
        ):
            response = client.post(f"/jobs/{job_id}/{verb}/", follow=True)
            assert message in text_of(response)
            assert query("SELECT state FROM jobs_job")[0]["state"] == state
        late = text_of(client.post(f"/jobs/{job_id}/hold/", follow=True))
        assert "Only a waiting job can be held" in late

    def test_viewer_cannot_act_on_jobs(self, nlp, member):
        job_id = submit(member, nlp)
        client = browser(make_member(nlp, Role.VIEWER))
        assert f'action="/jobs/{job_id}/' not in text_of(client.get(f"/jobs/{job_id}/"))
        assert "needs the role" in text_of(client.post(f"/jobs/{job_id}/cancel/", follow=True))
        assert query("SELECT state FROM jobs_job")[0]["state"] == "pending"

    def test_job_actions_reject_unknown_verbs_and_get(self, nlp, member):
        job_id = submit(member, nlp)
        assert browser(member).post(f"/jobs/{job_id}/explode/").status_code == 404
        assert browser(member).get(f"/jobs/{job_id}/cancel/").status_code == 405


class TestTokens:
    def test_token_is_shown_once_and_works(self, member):
        client = browser(member)
        fields = {"name": "laptop", "scopes": ["read"], "expires_in_days": "30"}
        secret = found(r'class="secret"[^>]*>([^<]+)<', text_of(client.post("/tokens/", fields)))
        assert Client().get("/api/v1/me", headers={"Authorization": f"Bearer {secret}"}).status_code == 200
        page = text_of(client.get("/tokens/"))
        assert secret not in page
        assert "laptop" in page

    def test_token_form_reports_missing_fields(self, member):
        response = browser(member).post("/tokens/", {"name": "", "expires_in_days": "30"})
        assert response.status_code == 400
        assert "Enter a name." in text_of(response)
        assert "Choose at least one" in text_of(response)

    def test_token_scope_admin_is_for_admins(self, member):
        client = browser(member)
        assert 'value="admin"' not in text_of(client.get("/tokens/"))
        assert client.post("/tokens/", {"name": "x", "scopes": ["admin"]}).status_code == 400
        assert not ApiToken.objects.exists()
        assert browser(make_user(admin=True)).post("/tokens/", {"name": "x", "scopes": ["admin"]}).status_code == 200

    def test_page_lists_the_newest_tokens(self, member, monkeypatch):
        """20,000 of them take 5 s."""
        monkeypatch.setattr("frontend.pages.tokens.view.MAX_LISTED", 1)
        client, note = browser(member), "this list ends after the newest 1"
        for name, has_note in (("tablet", False), ("desktop", True)):
            client.post("/tokens/", {"name": name, "scopes": ["read"]})
            assert (note in text_of(client.get("/tokens/"))) == has_note
        assert "tablet" not in text_of(client.get("/tokens/"))

    def test_user_revokes_only_own_tokens(self, nlp, member):
        browser(member).post("/tokens/", {"name": "laptop", "scopes": ["read"]})
        token = ApiToken.objects.get()
        assert browser(make_member(nlp)).post(f"/tokens/{token.pk}/revoke/").status_code == 404
        assert "Token laptop is revoked." in text_of(browser(member).post(f"/tokens/{token.pk}/revoke/", follow=True))
        token.refresh_from_db()
        assert token.revoked_at is not None


class TestCancelLater:
    """A cancel of a waiting job is sent some seconds later: one that runs by then is not stopped unasked."""

    def test_delayed_cancel_leaves_started_job(self, nlp, member):
        make_node(name="n1", gpus=1)
        job_id = submit(member, nlp, gpu_count=1)
        client = browser(member)
        assert 'name="if_state" value="pending,held"' in text_of(client.get(f"/jobs/{job_id}/"))
        run_cycle()
        page = text_of(client.post(f"/jobs/{job_id}/cancel/", {"if_state": "pending,held"}, follow=True))
        assert f"Job {job_id} is scheduled by now. Cancel it once more to stop its processes." in page
        assert f"Cancel job {job_id}? Its processes are stopped" in page
        payload = client.post("/jobs/act/", {"verb": "cancel", "ids": str(job_id), "if_state": "pending,held"}).json()
        assert [payload["done"], payload["refused"][0]["id"]] == [[], job_id]
        assert query("SELECT state FROM jobs_job") == [{"state": "scheduled"}]
        client.post(f"/jobs/{job_id}/cancel/")
        assert query("SELECT state FROM jobs_job") == [{"state": "stopping"}]

    def test_delayed_cancel_cancels_waiting_job(self, nlp, member):
        job_id = submit(member, nlp, gpu_count=0)
        payload = browser(member).post("/jobs/act/", {"verb": "cancel", "ids": str(job_id), "if_state": "pending,held"})
        assert payload.json()["done"] == [job_id]
        assert query("SELECT state FROM jobs_job") == [{"state": "cancelled"}]
