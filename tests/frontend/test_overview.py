"""Attention notices and next jobs of the overview, by viewer."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from frontend.live import feed
from frontend.ui import formatting as words
from gpusched.protocol.reasons import Pending
from gpusched.protocol.states import NodeIntent
from jobs.actions import job_actions
from jobs.models import Job
from nodes.health import cordon
from nodes.models import Device, Node
from scheduling.status.cluster import cluster_status
from tenants.api.tenants import represent_tenants
from tests.factories import identity_for, make_member, make_node, make_tenant, run_cycle, submit
from tests.scheduling.reservations.booking import reserve

pytestmark = pytest.mark.django_db


def attention(visible=None):
    rows = feed.rows("overview", visible)
    result = {row["kind"]: row for key, row in rows.items() if key.startswith("attention:")}
    result.pop("scheduler", None)  # none has run in most of these tests
    return result


def test_attention_has_one_notice_per_problem_with_places():
    first, second = make_node(gpus=4), make_node(gpus=4)
    Device.objects.filter(index=1).update(health="foreign")
    Device.objects.filter(index=3, node__name=second.name).update(health="hot", is_slowed=True)
    result = attention()
    assert (result["foreign"]["severity"], result["foreign"]["count"]) == ("red", 2)
    assert result["foreign"]["sentence"] == "2 GPUs are used by processes outside any job"
    assert {part["node"]: part["words"] for part in result["foreign"]["parts"]} == {
        first.name: "GPU 1",
        second.name: "GPU 1",
    }
    assert result["hot"]["sentence"] == "1 GPU is hot, 1 of them too hot to take new jobs"


def test_closed_nodes_are_the_last_notice():
    agent = make_node(gpus=1)
    Device.objects.update(health="degraded")
    cordon.set_intent(agent.name, NodeIntent.DRAINING)
    assert [row["severity"] for row in attention().values()] == ["red", "note"]
    assert attention()["closed"]["parts"][0]["words"] == "draining"


def test_closed_nodes_notice_links_to_their_group():
    """In their own group, unless they ail; some here and some there: in the whole list."""
    well, ill = make_node(gpus=1), make_node(gpus=1)
    make_node(gpus=1)
    links = []
    for agent in (well, ill):
        cordon.set_intent(agent.name, NodeIntent.CORDONED)
        links.append(attention()["closed"]["href"])
    Device.objects.filter(node__name=ill.name).update(health="degraded")
    links.append(attention()["closed"]["href"])
    assert links == ["/nodes/?group=closed", "/nodes/?group=closed", "/nodes/"]


def test_notice_counts_more_than_six_places():
    for _ in range(8):
        make_node(gpus=1)
    Device.objects.update(health="quarantined")
    result = attention()["quarantined"]
    assert (result["count"], len(result["parts"]), result["more"]) == (8, 6, 2)


def test_idle_holders_are_named_only_if_visible(monkeypatch):
    """Others see the number of GPUs, but not the tenant."""
    ours, theirs = make_tenant("ours"), make_tenant("theirs")
    agent = make_node(gpus=3)
    own_rows = submit(make_member(ours), ours, gpu_count=1)
    submit(make_member(theirs, name="zoe"), theirs, gpu_count=2)
    run_cycle()
    agent.start_all()
    monkeypatch.setattr("frontend.pages.fleet.rows._DEVICES", _all_idle())
    [part, other] = attention([ours.pk])["held_idle"]["parts"]
    assert (part["job"], part["words"].split(",")[0]) == (own_rows, "1 GPU")
    assert (other["job"], other["words"]) == (None, "2 GPUs of other tenants")
    assert "zoe" not in json.dumps(attention([ours.pk]))
    assert len(attention()["held_idle"]["parts"]) == 2


def _all_idle():
    from frontend.pages.fleet.rows import _DEVICES
    from nodes.health.gpu_status import GPU_STATUS

    return _DEVICES.replace(GPU_STATUS, "'held_idle'").replace("greatest(r.idle_since, h.since)", "now()")


def test_next_to_start_lists_visible_jobs_waiting_for_capacity():
    tenant, other = make_tenant(), make_tenant()
    user, stranger = make_member(tenant), make_member(other)
    make_node(gpus=1)
    submit(stranger, other, gpu_count=1)
    run_cycle()
    first, second = submit(user, tenant, gpu_count=1, priority=900), submit(user, tenant, gpu_count=1)
    submit(stranger, other, gpu_count=1)
    run_cycle()
    rows = feed.rows("overview", [tenant.pk])
    payload = [(row["place"], row["id"]) for key, row in rows.items() if key.startswith("next:")]
    assert payload == [(1, first), (2, second)]
    assert rows[f"next:{first}"]["sentence"]


def test_next_to_start_excludes_jobs_waiting_for_repair():
    """The repair of a broken GPU cannot be predicted: of two jobs only the one that waits for capacity is named."""
    tenant = make_tenant()
    user = make_member(tenant)
    make_node(gpus=1)
    submit(user, tenant, gpu_count=1)
    run_cycle()
    broken, room = submit(user, tenant, gpu_count=1, priority=900), submit(user, tenant, gpu_count=1)
    run_cycle()
    Job.objects.filter(pk=broken).update(reason=Pending.HEALTH)
    assert Job.objects.get(pk=room).reason
    rows = feed.rows("overview", [tenant.pk])
    assert [row["id"] for key, row in rows.items() if key.startswith("next:")] == [room]


def test_node_rows_name_gpu_holders():
    tenant = make_tenant("ours")
    agent = make_node(gpus=1)
    job = submit(make_member(tenant, name="anna"), tenant, gpu_count=1, name="train", max_runtime_minutes=60)
    run_cycle()
    agent.start_all()
    [node] = feed.rows("nodes", [tenant.pk]).values()
    holder = node["holders"][str(job)]
    assert (holder["name"], holder["user"], holder["tenant"]) == ("train", "anna", "ours")
    assert holder["ends_at"]
    [node] = feed.rows("nodes", [make_tenant().pk]).values()
    assert (node["jobs"], node["holders"]) == ([], {})


def test_entitlement_is_by_weight_and_limits_go_to_others():
    small, big, quiet = make_tenant("small", quota={"max_gpus": 1}), make_tenant("big"), make_tenant("quiet")
    make_node(gpus=8)
    for tenant in (small, big):
        submit(make_member(tenant), tenant, gpu_count=1)
    rows = feed.rows("overview", None)
    payload = {tenant.name: rows[f"tenant:{tenant.name}"]["entitled_gpus"] for tenant in (small, big, quiet)}
    assert payload == {"small": 1.0, "big": 7.0, "quiet": None}


def test_largest_job_counts_total_and_best_node():
    for gpus in (4, 2):
        make_node(gpus=gpus)
    make_node(gpus=1, model="NVIDIA L4")
    rows = feed.rows("overview", None)
    payload = {
        row["model"]: (row["gpus"], row["on_one_node"]) for key, row in rows.items() if key.startswith("largest:")
    }
    assert payload == {"NVIDIA A100-SXM4-80GB": (6, 4), "NVIDIA L4": (1, 1)}


def test_largest_job_leaves_out_what_is_reserved_now():
    """Also while its own jobs use a part."""
    tenant = make_tenant()
    user = make_member(tenant)
    make_node(gpus=8)
    reserved = reserve(user, tenant, 0, 60, gpus=3)
    reserve(user, tenant, 60, 60, gpus=5)
    largest = "largest:NVIDIA A100-SXM4-80GB"
    assert feed.rows("overview", None)[largest]["gpus"] == 5
    submit(user, tenant, gpu_count=2, reservation=reserved.pk)
    run_cycle()
    assert feed.rows("overview", None)[largest]["gpus"] == 5


def test_waits_show_p90_and_oldest():
    tenant = make_tenant()
    user = make_member(tenant)
    since = timezone.now()
    for number in range(1, 11):
        job_id = submit(user, tenant)
        Job.objects.filter(pk=job_id).update(submitted_at=since - timedelta(hours=number))
    status = feed.rows("overview", None)["status"]
    assert [status[f"{name}_wait_seconds"] // 360 for name in ("p90", "oldest")] == [91, 100]


def test_next_to_start_is_bounded_over_all_tenants():
    for _ in range(2):
        tenant = make_tenant()
        user = make_member(tenant)
        for _ in range(3):
            submit(user, tenant)
    rows = feed.rows("overview", None)
    assert [row["place"] for key, row in rows.items() if key.startswith("next:")] == [1, 2, 3]


def test_lost_node_has_no_other_notice():
    agent = make_node(gpus=2)
    Device.objects.update(health="foreign")
    assert set(attention()) == {"foreign"}
    Node.objects.filter(name=agent.name).update(state="lost")
    assert set(attention()) == {"lost"}


def test_job_is_idle_since_its_last_busy_gpu(monkeypatch):
    tenant = make_tenant()
    agent = make_node(gpus=2)
    submit(make_member(tenant), tenant, gpu_count=2)
    run_cycle()
    agent.start_all()
    since = _all_idle().replace("now()", "timestamptz '2026-03-01 08:00Z' - d.index * interval '1 hour'")
    monkeypatch.setattr("frontend.pages.fleet.rows._DEVICES", since)
    [part] = attention()["held_idle"]["parts"]
    assert part["since"].startswith("2026-03-01T08:00:00")


def hold(job_id, user):
    job_actions.hold(job_id, identity_for(user))


def test_waiting_jobs_have_the_same_count_everywhere():
    """Held ones too: by the number, by the reasons, by the tenants, by the queue and by REST."""
    tenant = make_tenant("ours")
    user = make_member(tenant)
    jobs = [submit(user, tenant) for _ in range(3)]
    hold(jobs[0], user)
    rows = feed.rows("overview", None)
    by_reason = sum(row["jobs"] for key, row in rows.items() if key.startswith("waiting:"))
    queue = feed.rows("queue", None)["total"]["jobs"]
    counted = [rows["status"]["pending_jobs"], by_reason, rows["tenant:ours"]["jobs_waiting"], queue]
    assert [*counted, cluster_status()["pending_jobs"], represent_tenants(None)[0]["pending_jobs"]] == [3] * 6
    for job_id in jobs[1:]:
        hold(job_id, user)
    assert feed.rows("overview", None)["status"]["oldest_wait_seconds"] is None, "the start of the wait is unknown"


def test_under_guarantee_counts_only_jobs_waiting_for_gpus(client):
    """A job that its owner holds, that has a time to start at or that fits nowhere wants for nothing."""
    make_node(gpus=1)
    tenant = make_tenant("ours", quota={"guaranteed_gpus": 4})
    user = make_member(tenant)
    hold(submit(user, tenant), user)
    submit(user, tenant, not_before="2099-01-01T00:00:00Z")
    submit(user, tenant, gpu_count=1, gpu_model="no such")
    run_cycle()
    asking = [feed.rows("tenants", None)["ours"]["jobs_asking"]]
    client.force_login(user)
    assert "under its guarantee" not in client.get("/tenants/").content.decode()
    submit(user, tenant)
    submit(user, tenant)
    run_cycle()
    row = feed.rows("tenants", None)["ours"]
    assert [*asking, row["jobs_asking"], row["jobs_waiting"]] == [0, 1, 4]
    assert "under its guarantee" in client.get("/tenants/").content.decode()


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0, "0 s"),
        (60, "1 min"),
        (247, "4 min 7 s"),
        (3600, "1 h"),
        (3847, "1 h 4 min"),
        (263047, "3 d 1 h"),
        (None, "n/a"),
    ],
)
def test_durations_have_units(seconds, message):
    assert words.duration(seconds) == message
