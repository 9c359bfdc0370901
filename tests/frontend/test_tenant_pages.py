"""Tenants and quotas: bars by model, visibility, preview and concurrent edits."""

import re

import pytest

from frontend.pages.tenants import details
from gpusched.lib.db.sql import query
from tenants.models import Quota
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import browser, found, text_of

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin():
    return browser(make_user("root", admin=True))


def typed(client, **changes):
    """The form as the page has it, with these changes."""
    page = text_of(client.get("/tenants/nlp/quota/"))
    fields = dict(re.findall(r'<input[^>]*name="(\w+)" value="([^"]*)"', page)) | {"max_gpus_by_model": ""}
    fields.pop("csrfmiddlewaretoken", None)
    return {**fields, **{name: str(value) for name, value in changes.items()}}


class TestPages:
    def test_tenant_bars_show_use_by_model(self, nlp, member, admin):
        make_node(name="n1", gpus=4)
        make_node(name="n2", gpus=2, model="NVIDIA H100 80GB HBM3")
        Quota.objects.filter(tenant=nlp).update(max_gpus_by_model={"H100": 1}, guaranteed_gpus=1)
        submit(member, nlp, gpu_count=3)
        run_cycle()
        for path in ("/tenants/", "/tenants/nlp/"):
            page = text_of(admin.get(path))
            assert "3 used, 1 guaranteed, no limit" in page
            assert "A100-SXM4-80GB: 3 used, no limit, 4 in the fleet" in page
            assert "H100 80GB HBM3: 0 used, 1 at most, 2 in the fleet" in page
            assert "2 borrowed" in page

    def test_tenant_bars_show_shared_limit(self, nlp, admin):
        """It is not a limit of each of them."""
        make_node(name="n1", gpus=4)
        make_node(name="n2", gpus=4, model="NVIDIA A100-PCIE-40GB")
        make_node(name="n3", gpus=4, model="NVIDIA H100 80GB HBM3")
        Quota.objects.filter(tenant=nlp).update(max_gpus_by_model={"A100": 2}, max_gpus=3)
        page = text_of(admin.get("/tenants/nlp/"))
        assert "A100-PCIE-40GB: 0 used, 2 at most of all A100, 4 in the fleet" in page
        assert "H100 80GB HBM3: 0 used, 3 at most of all GPUs, 4 in the fleet" in page

    def test_members_see_only_own_tenants_without_edit(self, nlp, member):
        """A08."""
        make_member(make_tenant("other"), name="stranger")
        client = browser(member)
        page = text_of(client.get("/tenants/nlp/"))
        assert member.username in page and "History of edits" not in page and "Edit quota" not in page
        assert "other" not in re.findall(r'href="/tenants/(\w+)/"', text_of(client.get("/tenants/")))
        for path in ("/tenants/other/", "/tenants/nowhere/", "/tenants/other/quota/"):
            assert client.get(path).status_code == 404
        assert client.get("/tenants/nlp/quota/").status_code == 403
        assert client.post("/tenants/nlp/quota/", {"max_gpus": "1"}).status_code == 403

    def test_preemptions_are_shown_to_both_tenants(self, nlp, member, admin):
        make_node(name="n1", gpus=1)
        owner = make_member(vision := make_tenant("vision"))
        victim, winner = submit(member, nlp, gpu_count=0), submit(owner, vision, gpu_count=0)
        run_cycle()
        query(
            "UPDATE jobs_attempt SET ended_at = now(), reason = 'preempted',"
            " evidence = jsonb_build_object('by_job', %s::bigint, 'rule', 'reclaim') WHERE job_id = %s RETURNING 1",
            [winner, victim],
        )
        assert "1 received, 0 given" in text_of(admin.get("/tenants/nlp/"))
        other = text_of(admin.get("/tenants/vision/"))
        assert "0 received, 1 given" in other and "of tenant nlp stopped for its jobs" in other


class TestQuota:
    def test_quota_effect_is_shown_before_change(self, nlp, member, admin):
        """A07."""
        make_node(name="n1", gpus=8)
        Quota.objects.filter(tenant=nlp).update(guaranteed_gpus=4)
        submit(member, nlp, gpu_count=4)
        run_cycle()
        fields = typed(admin, guaranteed_gpus=1, preview=1)
        payload = text_of(admin.post("/tenants/nlp/quota/", fields, headers={"HX-Request": "true"}))
        assert "<html" not in payload
        assert "3 of the 4 GPUs that it holds would be borrowed (0 now)" in payload
        assert "No running job is stopped." in payload
        assert Quota.objects.get(tenant=nlp).guaranteed_gpus == 4

    def test_conflicting_quota_needs_confirmation(self, nlp, member, admin):
        """A07."""
        make_node(name="n1", gpus=8)
        submit(member, nlp, gpu_count=4)
        run_cycle()
        fields = typed(admin, max_gpus=2)
        refused = admin.post("/tenants/nlp/quota/", fields)
        assert refused.status_code == 400
        assert "Apply it anyway" in text_of(refused) and "more than the limit of 2" in text_of(refused)
        assert Quota.objects.get(tenant=nlp).max_gpus is None
        done = text_of(admin.post("/tenants/nlp/quota/", {**fields, "go_ahead": "1"}, follow=True))
        assert "The quota is changed" in done
        assert Quota.objects.get(tenant=nlp).max_gpus == 2
        assert query("SELECT state FROM jobs_job")[0]["state"] == "scheduled"
        edit = found(r'(?s)<tr data-key="edit-\d+">(.*?)</tr>', done)
        assert "quota.change" in edit and "root" in edit and "max_gpus</code> none → <b>2</b>" in edit

    def test_quota_edit_detects_concurrent_change(self, nlp, admin):
        fields = typed(admin, max_gpus=8)
        admin.post("/tenants/nlp/quota/", typed(admin, max_gpus=16))
        late = admin.post("/tenants/nlp/quota/", fields)
        assert late.status_code == 400
        assert "was changed meanwhile" in text_of(late)
        assert Quota.objects.get(tenant=nlp).max_gpus == 16

    def test_quota_edit_can_be_restored(self, nlp, admin):
        """Undo: the form is filled with what the edit found, says what that would do, and changes nothing by itself."""
        admin.post("/tenants/nlp/quota/", typed(admin, max_gpus=16, max_gpus_by_model="A100=8"))
        admin.post("/tenants/nlp/quota/", typed(admin, max_gpus=4, max_gpus_by_model=""))
        [back, first] = re.findall(r'href="(/tenants/nlp/quota/\?back=\d+)"', text_of(admin.get("/tenants/nlp/")))
        page = text_of(admin.get(back))
        assert "GPUs at most: 4 → <b>16</b>" in page and "GPUs by model: no limit → <b>A100 8</b>" in page
        assert Quota.objects.get(tenant=nlp).max_gpus == 4
        fields = {name: "" if value is None else value for name, value in admin.get(back).context["form"].data.items()}
        admin.post("/tenants/nlp/quota/", fields)
        quota = Quota.objects.get(tenant=nlp)
        assert (quota.max_gpus, quota.max_gpus_by_model) == (16, {"A100": 8})
        other = make_tenant("other")
        for path in (
            f"/tenants/{other.name}/quota/{first[20:]}",
            "/tenants/nlp/quota/?back=99999",
            "/tenants/nlp/quota/?back=x",
        ):
            assert admin.get(path).status_code == 404, path

    @pytest.mark.parametrize(
        ("field", "value", "sentence"),
        [
            ("max_gpus", "-1", "greater than or equal to 0"),
            ("max_gpus", "x", "Enter a whole number"),
            ("guaranteed_gpus", "", "This field is required"),
            ("max_gpus_by_model", "A100", "write MODEL=GPUS"),
            ("max_gpus_by_model", "A100=1\na100=2", "names a model twice"),
        ],
    )
    def test_quota_error_is_beside_its_field(self, field, value, sentence, nlp, admin):
        page = text_of(admin.post("/tenants/nlp/quota/", typed(admin, **{field: value})))
        assert sentence in found(rf'id="e_{field}">([^<]*)<', page)

    def test_quota_limits_by_model_are_lines(self, nlp, admin):
        admin.post("/tenants/nlp/quota/", typed(admin, max_gpus_by_model="A100=16\r\nH100 = 4"))
        assert Quota.objects.get(tenant=nlp).max_gpus_by_model == {"A100": 16, "H100": 4}
        assert "A100=16\nH100=4" in text_of(admin.get("/tenants/nlp/quota/"))


def test_edit_history_formats_values():
    row = {
        "before": {"closed": False, "archived_at": None, "models": {"A100": 2, "H100": 0}},
        "after": {"closed": True, "archived_at": "2030-01-31T08:00:00.123456Z", "models": {}},
    }
    assert details._changes(row) == [
        ("closed", "no", "yes"),
        ("archived_at", None, "2030-01-31 08:00:00 UTC"),
        ("models", "A100: 2, H100: 0", None),
    ]
