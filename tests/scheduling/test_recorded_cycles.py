"""A63: recorded cycles: their storage, and the results of a replay."""

import zlib
from dataclasses import replace

import pytest
from django.test import Client

from gpusched.lib.db.sql import execute, query
from gpusched.protocol.dependencies import Dependency
from jobs.actions import job_actions
from scheduling.cycle import recorded_cycles, run
from scheduling.worker import tasks
from tests.api.calls import call
from tests.factories import identity_for, make_node, make_token, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def admin():
    return make_user("root", admin=True)


@pytest.fixture
def busy(user, tenant):
    """A job that started in the first recorded cycle, and two that wait for its GPUs in the second."""
    node = make_node(gpus=8, name="n1")
    make_node(gpus=1, name="n2")
    jobs = [submit(user, tenant, gpu_count=6, max_runtime_minutes=60)]
    run_cycle()
    node.start_all()
    jobs += [submit(user, tenant, gpu_count=8), submit(user, tenant, gpu_count=4, priority=400)]
    run_cycle()
    return jobs


def recorded():
    return [row["cycle_id"] for row in query("SELECT cycle_id FROM scheduling_recordedcycle ORDER BY 1")]


def replay(admin, cycle_id, **query):
    message = "&".join(f"{name}={value}" for name, value in query.items())
    return call("GET", f"/api/v1/scheduling/cycles/{cycle_id}/replay?{message}", make_token(admin))


def test_recorded_cycle_replays_to_its_plan_after_the_cluster_changed(busy, admin):
    """A63: from the recording alone: jobs, nodes and policy have changed or are gone by then."""
    first, second = recorded()
    execute("UPDATE nodes_device SET health = 'lost'")
    execute("UPDATE jobs_job SET priority = 999")
    answer = replay(admin, first)
    assert answer.status_code == 200, answer.content
    started = answer.json()
    assert started["is_same"] is True
    assert started["placements"] == [{"job_id": busy[0], "nodes": ["n1"], "gpus": 6}]
    waiting = replay(admin, second).json()
    assert waiting["is_same"] is True
    assert {job for wait in waiting["waits"] for job in wait["job_ids"]} == set(busy[1:])


def test_replay_explains_a_job_and_a_node(busy, admin):
    answer = replay(admin, recorded()[1], job_id=busy[1], node="n2").json()["job"]
    assert not answer["starts"]
    assert answer["reason"]["code"] == "capacity"
    assert answer["changes"]
    assert answer["obstacles"] == [{"test": "model", "sentence": "1 of its GPUs are there; a rank needs 8"}]


def test_replay_under_another_policy_lists_differences(user, tenant, admin):
    make_node(gpus=4, name="n1")
    long = submit(user, tenant, gpu_count=4, max_runtime_minutes=6000)
    short = submit(user, tenant, gpu_count=4, max_runtime_minutes=1)
    run_cycle()
    answer = replay(admin, recorded()[0], policy="shortest").json()
    assert (answer["policy"], answer["recorded_policy"], answer["is_same"]) == ("shortest", "fair", None)
    assert answer["starts_only_recorded"] == [long]
    assert answer["starts_only_here"] == [short]


def test_why_names_the_cycle_only_for_admins(busy, user, admin):
    first, second = recorded()

    def cycle_of(job_id, who):
        return call("GET", f"/api/v1/jobs/{job_id}/explain", make_token(who)).json()["cycle_id"]

    assert cycle_of(busy[0], admin) == first
    assert cycle_of(busy[1], admin) == second
    assert cycle_of(busy[0], user) is None
    execute("DELETE FROM scheduling_recordedcycle WHERE cycle_id = %s", [first])
    assert cycle_of(busy[0], admin) is None


def test_why_names_no_cycle_for_a_job_outside_all_cycles(busy, user, tenant, admin):
    """`cycles replay --job` would answer that the job does not wait in that cycle."""
    held, dependent = busy[1], submit(user, tenant, depends_on=[Dependency(job=busy[2])])
    job_actions.hold(held, identity_for(user))
    run_cycle()
    behind = submit(user, tenant)
    for job_id in (held, dependent, behind):
        answer = call("GET", f"/api/v1/jobs/{job_id}/explain", make_token(admin)).json()
        assert answer["cycle_id"] is None, answer


def test_job_page_names_the_cycle_only_for_admins(busy, user, admin):
    first, second = recorded()
    for who, is_named in ((admin, True), (user, False)):
        browser = Client()
        browser.force_login(who)
        placed = browser.get(f"/jobs/{busy[0]}/?tab=why").content.decode()
        waiting = browser.get(f"/jobs/{busy[1]}/foreseen/").content.decode()
        assert (f"gpusched cycles replay {first}" in placed) is is_named
        assert (f"gpusched cycles replay {second} --job {busy[1]}" in waiting) is is_named


def test_cycle_list_shows_which_cycles_are_recorded(busy, admin):
    run_cycle()
    items = call("GET", "/api/v1/scheduling/cycles", make_token(admin)).json()["items"]
    assert {row["id"] for row in items if row["is_recorded"]} == set(recorded())


@pytest.mark.parametrize(
    ("query", "status", "code"),
    [
        ({"policy": "srtf"}, 400, "invalid"),
        ({"policy": "none"}, 400, "invalid"),
        ({"node": "n1"}, 400, "invalid"),
        ({"job_id": 0}, 400, "invalid"),
        ({"job_id": 999_999}, 404, "not_found"),
        ({"job_id": "first", "node": "n9"}, 404, "not_found"),
    ],
)
def test_replay_rejects_unrecorded_jobs_and_nodes(busy, admin, query, status, code):
    """A55"""
    given = {name: busy[1] if value == "first" else value for name, value in query.items()}
    answer = replay(admin, recorded()[1], **given)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_replay_rejects_a_cycle_that_is_not_recorded_or_has_another_format(busy, admin):
    missing = replay(admin, 10_000_000)
    assert missing.status_code == 404
    assert "GPUSCHED_CYCLE_RECORDINGS_MB" in missing.json()["next_step"]
    first = recorded()[0]
    execute("UPDATE scheduling_recordedcycle SET content = %s", [zlib.compress(b'{"format": 1}')])
    assert replay(admin, first).json()["code"] == "other_format"


def test_recordings_contain_no_command_and_no_environment(user, tenant):
    """A56"""
    make_node(gpus=1)
    submit(user, tenant, gpu_count=1, command=["hush"], environment={"TOKEN": "hush"})
    run_cycle()
    [row] = query("SELECT content FROM scheduling_recordedcycle")
    content = zlib.decompress(row["content"])
    assert b"hush" not in content and b"TOKEN" not in content


def test_trim_keeps_the_latest_within_the_limit(busy, settings, monkeypatch):
    first, second = recorded()
    monkeypatch.setattr(recorded_cycles, "_MIB", 1)
    [size] = [
        row["size_bytes"] for row in query("SELECT size_bytes FROM scheduling_recordedcycle ORDER BY 1 DESC LIMIT 1")
    ]
    settings.ENV = replace(settings.ENV, cycle_recordings_mb=size)
    assert recorded_cycles.trim() == 1
    assert recorded() == [second]
    settings.ENV = replace(settings.ENV, cycle_recordings_mb=0)
    assert recorded_cycles.trim() == 1
    run_cycle()
    assert recorded() == []


def test_recordings_are_deleted_with_their_cycles(busy):
    execute("UPDATE scheduling_recordedcycle SET decided_at = now() - interval '8 days'")
    execute("UPDATE scheduling_cycle SET started_at = now() - interval '8 days'")
    tasks.drop_old()
    assert recorded() == []


def test_recording_keeps_to_its_share_of_time(busy, user, tenant, monkeypatch):
    monkeypatch.setattr(recorded_cycles, "TIME_SHARE", 1e-9)
    recorded_cycles._pauses_until.put(None, 0.0)
    for _ in range(2):
        submit(user, tenant, gpu_count=2)
        run.run("test")
        assert len(recorded()) == 3


def test_cycle_is_committed_when_it_cannot_be_recorded(user, tenant, monkeypatch, caplog):
    def fail(*args):
        raise OSError("no space left on device")

    monkeypatch.setattr(recorded_cycles, "store", fail)
    make_node(gpus=1)
    submit(user, tenant, gpu_count=1)
    result = run.run("event")
    assert result is not None and result.placed == 1
    assert "was not recorded" in caplog.text
