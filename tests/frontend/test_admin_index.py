"""The admin index shows the cluster like the overview, restricted to the viewer."""

import pytest
from django.contrib.auth.models import User
from django_q.models import Schedule

from nodes.models import Device
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import browser, text_of

pytestmark = pytest.mark.django_db(transaction=True)


def index(user):
    return text_of(browser(user).get("/admin/"))


def test_admin_index_shows_cluster_numbers_and_attention():
    admin = make_user("root", admin=True)
    make_node(gpus=4)
    Device.objects.filter(index=0).update(health="quarantined")
    submit(admin, make_tenant(), gpu_count=2)
    run_cycle()
    text = index(admin)
    assert '"busy_gpus":2' in text
    assert "1 GPU is quarantined" in text
    for region in ("overview-strip", "overview-counts", "overview-attention"):
        assert f'data-view="{region}"' in text
    assert "/static/live/live.js" in text


def test_admin_index_links_to_join_when_cluster_is_empty():
    assert 'href="/join/"' in index(make_user("root", admin=True))


def test_admin_index_shows_nothing_without_login():
    answer = browser().get("/admin/")
    assert (answer.status_code, "cluster-now" in text_of(answer)) == (302, False)


def test_admin_index_hides_other_tenants_jobs_from_staff():
    """A08"""
    make_node(gpus=1)
    theirs = make_tenant("theirs")
    submit(make_member(theirs, name="zoe"), theirs, gpu_count=1, name="top-secret")
    run_cycle()
    text = index(User.objects.create(username="clerk", is_staff=True))
    assert '"busy_gpus":1' in text
    assert not [word for word in ("theirs", "zoe", "top-secret") if word in text]


def test_admin_login_explains_itself_to_members():
    anna = browser(make_member(make_tenant(), name="anna"))
    answer = anna.get("/admin/tenants/tenant/", follow=True)
    text = text_of(answer)
    assert "anna</b>, but this area is for administrators." in text
    assert '<a class="underline" href="/overview/">' in text
    refused = text_of(anna.post("/admin/login/", {"username": "root", "password": "wrong"}))
    assert refused.count("anna") == 1
    assert "for administrators" not in text_of(browser().get("/admin/login/"))


@pytest.mark.parametrize("value", ["x", "{}", "\x00", "-1", "99999999999999999999", "²", ""])
def test_admin_shows_a_form_again_whose_choice_is_no_key(value):
    tenant = make_tenant()
    root = browser(make_user("root", admin=True))
    bucket = {"tenant": value, "user": value, "scope": "user", "limits": "tasks", "rate_per_second": "x", "burst": ""}
    answer = root.post("/admin/tenants/tokenbucket/add/", bucket)
    assert (answer.status_code, "Enter a number." in text_of(answer)) == (200, True)
    member = {"memberships-0-user": value, "memberships-0-role": "owner", "memberships-0-tenant": tenant.pk}
    counts = {f"{kind}-{name}": "0" for kind in ("quota", "memberships") for name in ("TOTAL_FORMS", "INITIAL_FORMS")}
    answer = root.post(f"/admin/tenants/tenant/{tenant.pk}/change/", {**counts, **member, "memberships-TOTAL_FORMS": 1})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "address",
    [
        "django_q/schedule/?next_run__year=99999", "django_q/schedule/?next_run__year=0",
        "django_q/schedule/?next_run__iso_year=99999", "django_q/schedule/?next_run__year=99999999999999999999",
        "django_q/schedule/?cluster__regex=(",
        "autocomplete/?app_label=auth&model_name=group&field_name=user&term=a",
        "autocomplete/?app_label=auth&model_name=permission&field_name=group&term=a",
    ],
)  # fmt: skip
def test_admin_rejects_values_in_an_address_that_no_field_can_have(address):
    answer = browser(make_user("root", admin=True)).get(f"/admin/{address}")
    assert (answer.status_code, "This request is not valid" in text_of(answer)) == (400, True)


@pytest.mark.parametrize(
    "address",
    [
        "serving/endpoint/?state=%00", "notifications/route/?channel__exact=%00&channel__exact=mail",
        "django_q/success/%00/change/", "autocomplete/?app_label=tenants&model_name=membership&field_name=user&term=%00",
    ],
)  # fmt: skip
def test_admin_rejects_a_nul_character_in_an_address(address):
    answer = browser(make_user("root", admin=True)).get(f"/admin/{address}")
    assert (answer.status_code, "This request is not valid" in text_of(answer)) == (400, True)


def test_admin_shows_planned_tasks_but_edits_none():
    """A form would let an admin run any function on the server."""
    row = Schedule.objects.create(name="sweep", func="scheduling.worker.tasks.sweep", schedule_type=Schedule.MINUTES)
    root = browser(make_user("root", admin=True))
    assert "scheduling.worker.tasks.sweep" in text_of(root.get("/admin/django_q/schedule/"))
    assert root.get(f"/admin/django_q/schedule/{row.pk}/change/").status_code == 200
    edits = [f"{row.pk}/change/", f"{row.pk}/delete/", "add/"]
    form = {"name": "sweep", "func": "os.system", "args": "'true'", "schedule_type": "O", "post": "yes"}
    assert [root.post(f"/admin/django_q/schedule/{edit}", form).status_code for edit in edits] == [403] * 3
    assert [task.func for task in Schedule.objects.all()] == ["scheduling.worker.tasks.sweep"]
