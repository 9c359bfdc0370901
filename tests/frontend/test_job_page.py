"""The job page: tabs, readings, cost, jobs ahead, deleted logs."""

import re
from datetime import timedelta
from decimal import Decimal

import pytest
from django.utils import timezone

from frontend.pages.job.cost import cost_of
from frontend.pages.job.gpu_readings import readings
from gpusched.lib.db.sql import execute, query
from gpusched.protocol.affinity import LabelOperator, NodeAffinity, Preference
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.states import Role
from nodes.models import Device, Node
from scheduling.whatif import current as whatif
from tenants.billing import rates
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.frontend.browsing import HOSTILE, browser, carried, text_of

pytestmark = pytest.mark.django_db(transaction=True)
TABS = ("log", "timeline", "gpus", "why", "spec", "events")


@pytest.fixture
def running(nlp, member):
    agent = make_node(name="n1", gpus=2)
    job_id = submit(member, nlp, gpu_count=2, command=["python", "a b.py"], environment={"LR": "0.1"})
    run_cycle()
    agent.start_all()
    return job_id


def current(page):
    return re.findall(r'id="tab-(\w+)" aria-current="page"', page)


def test_job_tabs_have_urls(running, member):
    client = browser(member)
    for tab in TABS:
        response = client.get(f"/jobs/{running}/?tab={tab}")
        assert response.status_code == 200
        assert current(text_of(response)) == [tab]
    assert current(text_of(client.get(f"/jobs/{running}/?tab=nonsense"))) == ["log"]


def test_job_page_opens_on_reason_then_log(running, nlp, member):
    client = browser(member)
    waiting = submit(member, nlp, gpu_count=2)
    assert current(page := text_of(client.get(f"/jobs/{waiting}/?shown=log"))) == ["why"]
    assert ">Why it waits</a>" in page
    assert current(text_of(client.get(f"/jobs/{running}/?shown=why"))) == ["log"]
    assert client.get(f"/jobs/{running}/?shown=log").status_code == 204  # the log is read


def test_spec_tab_shows_command_and_json(running, member):
    page = text_of(browser(member).get(f"/jobs/{running}/?tab=spec"))
    assert "python &#x27;a b.py&#x27;" in page
    assert "LR=0.1" in page
    assert "&quot;gpu_count&quot;: 2" in page
    assert "--gpus 2" in page


def test_gpus_tab_is_missing_without_gpus(nlp, member):
    page = text_of(browser(member).get(f"/jobs/{submit(member, nlp, gpu_count=0)}/"))
    assert "tab=gpus" not in page


def sample(device, at, utilisation):
    execute(
        "INSERT INTO nodes_sample (device_id, at, cell, seconds, utilisation_percent) VALUES (%s, %s, 'busy', 15, %s)",
        [device.pk, at, utilisation],
    )


def test_readings_cover_only_the_attempt(running, member):
    start = timezone.now() - timedelta(minutes=30)
    execute("UPDATE jobs_attempt SET scheduled_at = %s, started_at = %s WHERE job_id = %s", [start, start, running])
    first, second = Device.objects.order_by("index")
    elsewhere = make_node(name="n2", gpus=1)
    for minutes in range(20):
        sample(first, start + timedelta(minutes=minutes, seconds=1), 50)
    sample(first, start - timedelta(minutes=1), 99)
    sample(Device.objects.get(node__name=elsewhere.name), start + timedelta(minutes=1), 99)
    payload = browser(member).get(f"/jobs/{running}/readings/").json()
    assert [(d["node"], d["index"]) for d in payload["devices"]] == [("n1", 0), ("n1", 1)]
    assert set(payload["devices"][0]["utilisation_percent"]) == {50.0}
    assert len(payload["devices"][0]["times"]) == 20
    assert payload["devices"][0]["power_watts"] == [None] * 20
    assert payload["devices"][1]["times"] == []
    assert payload["is_live"] and payload["from"] == pytest.approx(start.timestamp())
    assert second.pk != first.pk


def test_old_readings_come_from_rollups(running):
    start = timezone.now() - timedelta(days=3)
    execute("UPDATE jobs_attempt SET scheduled_at = %s, started_at = %s WHERE job_id = %s", [start, start, running])
    device = Device.objects.order_by("index")[0]
    for hours in range(48):
        execute(
            "INSERT INTO nodes_rollup (device_id, at, samples, held_seconds, busy_seconds, utilisation_min,"
            " utilisation_mean, utilisation_max) VALUES (%s, %s, 1, 1, 1, 0, 40, 100)",
            [device.pk, start + timedelta(hours=hours)],
        )
    sample(device, timezone.now() - timedelta(hours=1), 80)
    payload = readings(running)
    assert payload is not None
    assert set(payload["devices"][0]["utilisation_percent"]) == {40.0, 80.0}
    assert len(payload["devices"][0]["times"]) <= 240


@pytest.mark.parametrize("requested", ["?attempt=7", "?attempt=x", "?attempt=" + "9" * 40])
def test_readings_of_missing_attempt_are_404(requested, running, member):
    status = browser(member).get(f"/jobs/{running}/readings/{requested}").status_code
    assert status == (404 if requested == "?attempt=7" else 200)


def test_job_cost_counts_only_rated_time(running, member):
    start = timezone.now() - timedelta(hours=2)
    execute("UPDATE nodes_assignment SET started_at = %s WHERE job_id = %s", [start, running])
    assert cost_of(running).cost is None
    rates.set_rate("*", Decimal(3), timezone.now() - timedelta(hours=1), None, "test")
    result = cost_of(running)
    assert result.gpu_hours == pytest.approx(4, abs=0.01)
    assert result.cost == pytest.approx(6, abs=0.01)
    assert result.is_partial
    page = text_of(browser(member).get(f"/jobs/{running}/cost/"))
    assert "4 GPU-hours, costs 6" in page
    assert "a part has no rate" in page


def test_jobs_ahead_are_counted_and_named_if_visible(running, nlp, member):
    other = make_tenant("other")
    stranger = make_member(other)
    submit(member, nlp, gpu_count=2, name="nearest-own")
    for _ in range(3):
        submit(stranger, other, gpu_count=1, name="secret-plan")
    last = submit(member, nlp, gpu_count=2)
    run_cycle()
    page = text_of(browser(member).get(f"/jobs/{last}/foreseen/"))
    assert "4 jobs with 5 GPUs: 1 \u00d7 2 GPUs, 3 \u00d7 1 GPU" in page
    assert "Ahead of it by priority and age" in page
    assert "Guarantees and shares rank before priority and age" in page
    assert "nearest-own" in page
    assert "secret-plan" not in page


def test_reason_history_is_a_bar(running, nlp, member):
    waiting = submit(member, nlp, gpu_count=2)
    run_cycle()
    since = timezone.now() - timedelta(hours=1)
    execute(
        "INSERT INTO jobs_jobreason (job_id, code, since_at, until_at) VALUES (%s, 'quota_wait', %s, %s)",
        [waiting, since, since + timedelta(minutes=30)],
    )
    page = text_of(browser(member).get(f"/jobs/{waiting}/"))
    assert 'class="wait-on-quota for-quota_wait" style="flex: 1800.0 1 0"' in page
    assert "quota wait" in page
    assert "so far" in page


def test_why_tab_lists_considered_nodes(nlp, member):
    make_node(name="roomy", gpus=8)
    make_node(name="tight", gpus=1)
    job_id = submit(member, nlp, gpu_count=1)
    run_cycle()
    page = text_of(browser(member).get(f"/jobs/{job_id}/?tab=why"))
    assert "2 of 2 nodes had room for it" in page
    chosen = re.findall(r'<tr class="is-chosen"><td[^>]*><a class="node"[^>]*>([^<]+)<', page)
    [row] = query("SELECT placement, considered FROM jobs_attempt WHERE job_id = %s", [job_id])
    assert chosen == [row["placement"][0]["node"]]
    assert {entry["node"] for entry in row["considered"]["candidates"]} == {"roomy", "tight"}
    assert row["considered"]["rule"] == "fragmentation"


def test_why_tab_has_taint_columns_only_when_they_differ(nlp, member):
    for name in ("n1", "n2"):
        make_node(name=name, gpus=1)
    Node.objects.filter(name="n2").update(admin_labels={"fast": "yes"})
    wish = Preference(key="fast", operator=LabelOperator.EXISTS, weight=10)
    job_id = submit(member, nlp, node_affinity=NodeAffinity(preferred=[wish]))
    run_cycle()
    client = browser(member)
    page = text_of(client.get(f"/jobs/{job_id}/?tab=why"))
    assert "then the highest weight of preferences met" in page
    assert re.findall(r'data-label="Preferences met" class="num">(\d+)<', page) == ["10", "0"]
    assert "10:fast" in text_of(client.get(f"/jobs/{job_id}/?tab=spec"))


def test_why_tab_explains_gangs_and_missing_records(nlp, member):
    make_node(name="n1", gpus=2)
    make_node(name="n2", gpus=2)
    gang = submit(member, nlp, gpu_count=4, gang_scheduling=True, ranks=2)
    run_cycle()
    client = browser(member)
    assert "A gang over 2 nodes fills the fewest nodes" in text_of(client.get(f"/jobs/{gang}/?tab=why"))
    execute("UPDATE jobs_attempt SET ranks = 1")
    execute("UPDATE jobs_attempt SET placement = jsonb_build_array(placement->0)")
    assert "The alternatives were not recorded" in text_of(client.get(f"/jobs/{gang}/?tab=why"))


def test_time_limit_changes_from_the_page(running, member):
    client = browser(member)
    assert "Set a time limit…" in text_of(client.get(f"/jobs/{running}/"))
    payload = text_of(client.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "90"}, follow=True))
    assert f"Job {running} may now run for 90 minutes" in payload
    assert query("SELECT max_runtime_seconds AS s FROM jobs_job WHERE id = %s", [running]) == [{"s": 5400}]
    assert ("Extend…" in payload, 'value="150"' in payload) == (True, True)
    refused = text_of(client.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "soon"}, follow=True))
    assert "flash error" in refused


def test_queue_details_show_known_part_without_scheduler(nlp, member, monkeypatch):
    """A08: an answer takes seconds where ten thousand wait."""
    make_node(name="n1", gpus=1)
    _, waiting = submit(member, nlp), submit(member, nlp)
    run_cycle()
    client = browser(member)
    assert "computing…" not in text_of(client.get(f"/jobs/{waiting}/foreseen/"))
    monkeypatch.setattr(whatif, "outlook", None)
    page = text_of(client.get(f"/jobs/{waiting}/foreseen/?part=now"))
    assert "computing…" in page
    assert "Time blocked by each reason" in page


def limit_of(job_id):
    return query("SELECT max_runtime_seconds AS s FROM jobs_job WHERE id = %s", [job_id])[0]["s"]


def undo_in(client, job_id):
    """Return what the undo button would send; None without one."""
    page = text_of(client.get(f"/jobs/{job_id}/actions/"))
    result = re.search(
        r'data-key="undo".*?name="max_runtime_minutes" value="([^"]+)".*?name="seen" value="(\d+)"', page
    )
    return {"max_runtime_minutes": result[1], "seen": result[2]} if result else None


def test_time_limit_undo_is_offered_only_for_own_latest_change(running, nlp, member):
    client, admin = browser(member), browser(make_user(admin=True))
    execute("UPDATE jobs_job SET max_runtime_seconds = 3661")
    assert undo_in(client, running) is None
    client.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "90"})
    assert undo_in(admin, running) is None, "it is not theirs to take back"
    undo = undo_in(client, running)
    assert undo["seen"] == "5400"
    assert "Undo: back to 1 h 1 min" in text_of(client.get(f"/jobs/{running}/"))
    admin.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "95"})
    assert undo_in(client, running) is None
    answer = client.post(f"/jobs/{running}/extend/", undo, headers={"accept": "application/json"}).json()
    assert (answer["is_done"], limit_of(running)) == (False, 5700)
    assert "was changed meanwhile" in answer["sentence"]
    client.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "100"})
    client.post(f"/jobs/{running}/extend/", undo_in(client, running))
    assert limit_of(running) == 5700, "to the second as it was"
    assert client.post(f"/jobs/{running}/extend/", {**undo, "seen": "soon"}).status_code == 302
    assert limit_of(running) == 5700


def test_time_limit_undo_is_hidden_when_it_would_be_refused(running, nlp, member):
    client, owner = browser(member), browser(make_member(nlp, Role.OWNER))
    execute("UPDATE jobs_job SET max_runtime_seconds = NULL")
    owner.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "300"})
    assert undo_in(owner, running) is None, "no way leads back to no limit"
    owner.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "600"})
    assert undo_in(owner, running) is not None
    execute("UPDATE jobs_job SET started_at = started_at - interval '6 hours'")
    assert undo_in(owner, running) is None, "that time is over"
    execute("UPDATE jobs_job SET started_at = started_at + interval '6 hours'")
    execute("SET session_replication_role = replica")
    execute(
        "UPDATE jobs_jobevent SET data = data - 'from_seconds' || '{\"from_seconds\": 60}' WHERE kind = 'limit_changed'"
    )
    execute("SET session_replication_role = DEFAULT")
    client.post(f"/jobs/{running}/extend/", {"max_runtime_minutes": "5"})
    assert limit_of(running) == 300
    assert undo_in(client, running) is None, "a member may not make it so much longer again"


def test_array_page_carries_progress_and_elements_their_array(nlp, member):
    agent = make_node(name="n1", gpus=2)
    array = submit(member, nlp, gpu_count=1, array=ArrayRequest(count=5))
    run_cycle()
    agent.start_all()
    client = browser(member)
    job = carried(client.get(f"/jobs/{array}/"))[f"job:{array}"]["job"]
    assert (job["array"]["count"], job["array"]["by_state"]["running"]) == (5, 2)
    elements = [item["id"] for item in carried(client.get(f"/jobs/?array={array}"), "listing")["items"]]
    assert len(elements) == 2
    element = carried(client.get(f"/jobs/{elements[0]}/"))[f"job:{elements[0]}"]["job"]
    assert element["array_id"] == array


def test_job_tabs_are_404_for_other_tenants(running, member):
    other = make_tenant("other")
    stranger = browser(make_member(other))
    for part in ("readings/", "cost/", "foreseen/", "?tab=gpus", "?tab=spec"):
        assert stranger.get(f"/jobs/{running}/{part}").status_code == 404


def test_job_tabs_escape_names(nlp, member):
    make_node(name="n1")
    job_id = submit(member, nlp, name=HOSTILE, command=[HOSTILE], environment={"A": HOSTILE}, gpu_count=1)
    for tab in TABS:
        assert "<script>alert" not in text_of(browser(member).get(f"/jobs/{job_id}/?tab={tab}"))
    assert query("SELECT 1 FROM jobs_job WHERE id = %s", [job_id])
