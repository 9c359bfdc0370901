"""Notices of a user do not depend on other users, and cover only visible tenants."""

import pytest

from frontend.live import feed
from frontend.pages.notices import activity
from frontend.pages.notices import rows as noticerows
from frontend.viewer import Viewer
from gpusched.lib.db.sql import execute
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.reasons import EndReason
from jobs.actions import job_actions
from jobs.lifecycle import states
from nodes.models import Device
from tenants.models import Membership
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user, run_cycle, submit

pytestmark = pytest.mark.django_db(transaction=True)


def end_for(user, tenant, count):
    """Create this many notices for the person: holds of their job by another user."""
    job_id = submit(user, tenant)
    job_actions.hold(job_id, identity_for(make_user(admin=True)))
    execute(
        "INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)"
        " SELECT job_id, now(), kind, attempt, actor, data FROM jobs_jobevent, generate_series(2, %s)"
        "  WHERE job_id = %s AND kind = 'held'",
        [count, job_id],
    )


def own(loaded, user, visible):
    rows = noticerows.restrict(loaded, Viewer(visible, user.pk))
    return sorted(key for key, row in rows.items() if key != "state" and row["is_mine"])


def test_busy_user_does_not_displace_notices_of_others(ours, anna):
    """A52: what is loaded for all who look is what each would load alone."""
    busy = make_member(ours, name="busy")
    end_for(anna, ours, 5)
    end_for(busy, ours, 500)
    visible = (ours.pk,)
    alone = [own(noticerows.load([user.pk], []), user, visible) for user in (anna, busy)]
    assert [len(keys) for keys in alone] == [5, noticerows.MAX_NOTICES]
    together = noticerows.load([anna.pk, busy.pk], [])
    assert [own(together, user, visible) for user in (anna, busy)] == alone


def test_notice_shortens_long_job_names(ours, anna):
    job_id = submit(anna, ours, name="n" * 200)
    job_actions.hold(job_id, identity_for(make_user("root", admin=True)))
    rows = noticerows.restrict(noticerows.load([anna.pk], []), Viewer((ours.pk,), anna.pk))
    sentences = [row["sentence"] for key, row in rows.items() if key != "state"]
    assert sentences == [f"job {job_id} {'n' * 59}…: held by root"]


def preempted(agent, user, tenant):
    job_id = submit(user, tenant, name="train")
    run_cycle()
    agent.start_all()
    states.stop([job_id], EndReason.PREEMPTED, {"by": "job 9", "why": "waits", "rule": "priority"}, "scheduler")
    return job_id


def again(job_id, count):
    """The event of that job so often again."""
    execute(
        "INSERT INTO jobs_jobevent (job_id, at, kind, attempt, actor, data)"
        " SELECT job_id, now(), kind, attempt, actor, data FROM jobs_jobevent, generate_series(1, %s)"
        "  WHERE job_id = %s AND kind = 'stopping'",
        [count, job_id],
    )


def test_other_activity_does_not_displace_member_notices(ours, anna):
    agent = make_node(gpus=2)
    job_id = preempted(agent, anna, ours)
    other = make_tenant("other")
    again(preempted(agent, make_member(other), other), activity.MAX_ROWS)
    device = Device.objects.order_by("-pk")[0]
    execute(
        "INSERT INTO nodes_incident (node_id, device_id, kind, cause, since, until)"
        " SELECT node_id, id, 'lost', '', now(), now() FROM nodes_device, generate_series(1, %s) WHERE id = %s",
        [activity.MAX_ROWS, device.pk],
    )
    did = [row["href"] for key, row in feed.rows("health", [ours.pk]).items() if key.startswith("did:")]
    assert f"/jobs/{job_id}/" in did and did.count(f"/nodes/{agent.name}/") == activity.MAX_ROWS - 1
    rung = [row["href"] for key, row in feed.rows("notices", [ours.pk], anna.pk).items() if key != "state"]
    assert rung == [f"/jobs/{job_id}/"], "a node is no concern of a member's bell"
    seen_by_all = [key for key in feed.rows("health", None) if key.startswith("did:")]
    assert len(seen_by_all) == activity.MAX_ROWS


def test_notices_exclude_tenants_that_the_user_left(ours, anna, client):
    """Their pages are 404."""
    agent = make_node(gpus=1)
    end_for(anna, ours, 1)
    running = submit(anna, ours, name="left-behind")
    run_cycle()
    agent.start_all()
    assert f"job:{running}" in feed.rows("mine", [ours.pk], anna.pk)
    Membership.objects.all().delete()
    assert feed.rows("mine", [], anna.pk) == {"counts": {"running": 0, "waiting": 0}}
    assert list(feed.rows("notices", [], anna.pk)) == ["state"]
    client.force_login(anna)
    assert client.get(f"/jobs/{running}/").status_code == 404
    assert "left-behind" not in client.get("/mine/").content.decode()


def test_admin_gets_notices_of_own_jobs_in_any_tenant(ours):
    admin = make_user("root", admin=True)
    job_id = submit(admin, ours)
    assert f"job:{job_id}" in feed.rows("mine", None, admin.pk)


def test_array_owner_is_notified_of_partial_cancel_by_others(ours, anna):
    array = submit(anna, ours, name="sweep", array=ArrayRequest(count=5))
    job_actions.cancel(array, identity_for(make_user("root", admin=True)), "1-2")
    rows = noticerows.restrict(noticerows.load([anna.pk], []), Viewer((ours.pk,), anna.pk))
    payload = [row["sentence"] for key, row in rows.items() if key != "state"]
    assert payload == [f"job {array} sweep: 2 of its elements are cancelled by root"]
