"""From an event of a job to a message at a real receiver: what is sent, to whom, and what happens when it fails."""

from datetime import timedelta

import pytest
from django.conf import settings
from django.utils import timezone

from gpusched.lib.db.sql import execute, query
from gpusched.lib.hooks import hook
from gpusched.protocol.arrays import ArrayRequest
from gpusched.protocol.states import Role
from jobs.logs import store
from notifications import targets
from notifications.models import Delivery, Notice, Route
from notifications.sending.sender import Sender
from tests.factories import make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import mail, pass_time, webhook, work

pytestmark = pytest.mark.django_db(transaction=True)


def ended_job(user, tenant, *, log: bytes = b"", exit_code: int = 0, agent=None, **fields) -> int:
    """Runs a job to its end."""
    agent = agent or make_node()
    job_id = submit(user, tenant, **fields)
    run_cycle()
    [key] = agent.start_all()
    if log:
        store.append(job_id, 1, 0, 0, log)
    agent.end(key, exit_code=exit_code)
    return job_id


def test_webhook_of_tenant_gets_a_failed_job_with_its_cause_and_its_last_lines(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    owner = make_member(tenant, Role.OWNER, "ada")
    webhook(owner, receiver.url, tenant)
    log = b"".join(b"line %d\n" % number for number in range(50))
    job_id = ended_job(make_member(tenant, name="kim"), tenant, log=log, exit_code=3, name="train")
    work(sender)
    assert not receiver.requests  # the log may still arrive
    pass_time(3)
    work(sender)
    [request] = receiver.requests
    assert request.json["type"] == "job_failed"
    data = request.json["data"]
    assert (data["job_id"], data["name"], data["user"], data["tenant"]) == (job_id, "train", "kim", "nlp")
    assert (data["state"], data["reason"], data["class"], data["exit_code"]) == ("failed", "exited", "user_exit", 3)
    assert data["sentence"].startswith("exited with code 3")
    assert data["log"] == [f"line {number}" for number in range(30, 50)]
    assert request.uid == str(Delivery.objects.get().uid)
    assert Delivery.objects.get().state == "sent"


def test_completed_job_is_reported_once_to_its_user_and_to_no_other(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    kim, lin = make_member(tenant, name="kim"), make_member(tenant, name="lin")
    webhook(kim, receiver.url)
    webhook(lin, receiver.url + "/lin")
    ended_job(kim, tenant)
    work(sender)
    work(sender)
    assert [(request.path, request.json["type"]) for request in receiver.requests] == [("/hook", "job_ended")]


def test_user_who_left_the_tenant_gets_nothing(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    kim = make_member(tenant, name="kim")
    webhook(kim, receiver.url)
    ended_job(kim, tenant)
    execute("DELETE FROM tenants_membership WHERE user_id = %s", [kim.pk])
    work(sender)
    assert Notice.objects.filter(expanded_at__isnull=False).count() == 1
    assert not receiver.requests


def test_route_gets_only_its_kinds_and_nothing_from_before_it_existed(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    kim = make_member(tenant, name="kim")
    agent = make_node()
    ended_job(kim, tenant, agent=agent, exit_code=1)
    webhook(kim, receiver.url, kinds=["job_failed"])
    ended_job(kim, tenant, agent=agent)
    work(sender)
    assert not Notice.objects.exists()
    assert not receiver.requests


def test_requeued_job_is_reported_only_when_it_ends(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    kim = make_member(tenant, name="kim")
    webhook(kim, receiver.url)
    agent = make_node()
    submit(kim, tenant, max_retries=1)
    run_cycle()
    agent.end(*agent.start_all(), exit_code=1)
    work(sender)
    assert not Notice.objects.exists()
    execute("UPDATE jobs_job SET eligible_at = NULL")
    run_cycle()
    agent.end(*agent.start_all(), exit_code=1)
    work(sender)
    assert [notice.data["attempt"] for notice in Notice.objects.all()] == [2]


def test_array_is_reported_once_not_by_element(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    kim = make_member(tenant, name="kim")
    webhook(kim, receiver.url)
    agent = make_node()
    array = submit(kim, tenant, array=ArrayRequest(count=4))
    run_cycle()
    agent.end(*agent.start_all())
    run_cycle()
    work(sender)
    assert [(request.json["type"], request.json["data"]["job_id"]) for request in receiver.requests] == [
        ("job_ended", array)
    ]


def test_cancelled_waiting_job_is_reported_as_ended(sender: Sender, receiver: Receiver):
    from jobs.actions import job_actions
    from tests.factories import identity_for

    tenant = make_tenant("nlp")
    kim = make_member(tenant, name="kim")
    webhook(kim, receiver.url)
    job_actions.cancel(submit(kim, tenant), identity_for(kim))
    work(sender)
    [request] = receiver.requests
    assert (request.json["type"], request.json["data"]["state"]) == ("job_ended", "cancelled")


def test_job_about_to_end_is_reported_once_per_limit(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    kim = make_member(tenant, name="kim")
    webhook(kim, receiver.url)
    agent = make_node()
    submit(kim, tenant, max_runtime_minutes=100)
    run_cycle()
    agent.start_all()
    work(sender)
    assert not receiver.requests
    execute("UPDATE jobs_job SET started_at = now() - interval '86 minutes'")
    work(sender)
    work(sender)
    [request] = receiver.requests
    assert request.json["type"] == "job_about_to_end"
    execute("UPDATE jobs_job SET max_runtime_seconds = 6060")
    work(sender)
    assert len(receiver.requests) == 2


def test_failed_request_is_repeated_with_the_same_id_and_growing_pauses(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    route = webhook(kim, receiver.url)
    receiver.statuses = [500, 503]
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    assert len(receiver.requests) == 1
    route.refresh_from_db()
    assert route.problem == "the receiver answered 500" and route.failing_since
    first = Delivery.objects.get().next_at - timezone.now()
    assert timedelta(seconds=6) < first < timedelta(seconds=13)
    pass_time(13)
    work(sender)
    assert len(receiver.requests) == 2
    assert Delivery.objects.get().next_at - timezone.now() > timedelta(seconds=20)
    pass_time(40)
    work(sender)
    assert len({request.uid for request in receiver.requests}) == 1 and len(receiver.requests) == 3
    route.refresh_from_db()
    assert (route.problem, route.failures, Delivery.objects.get().state) == ("", 0, "sent")


def test_delivery_is_given_up_with_a_visible_problem(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    route = webhook(kim, receiver.url)
    receiver.status = 500
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    pass_time(settings.ENV.notify_give_up_hours * 3600 + 60)
    work(sender)
    delivery = Delivery.objects.get()
    assert (delivery.state, delivery.attempts, delivery.error) == ("failed", 2, "the receiver answered 500")
    route.refresh_from_db()
    assert route.problem == "the receiver answered 500"
    pass_time(86_400)
    work(sender)
    assert len(receiver.requests) == 2


def test_receiver_that_is_gone_turns_its_route_off(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, receiver.url)
    receiver.status = 410
    for number in range(3):
        hook("notify")("reservation_starting", user_id=kim.pk, data={"text": str(number)})
    work(sender)
    assert not Route.objects.get().is_enabled
    assert {delivery.state for delivery in Delivery.objects.all()} == {"failed"}
    assert len(receiver.requests) == 1


def test_bad_message_does_not_block_those_behind_it(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, receiver.url)
    receiver.statuses = [400]
    for number in range(3):
        hook("notify")("reservation_starting", user_id=kim.pk, data={"text": str(number)})
    work(sender)
    pass_time(13)
    work(sender, ticks=4)
    sent = [request.json["data"]["text"] for request in receiver.requests]
    assert sent[0] == "0" and sorted(sent[1:]) == ["0", "1", "2"] and sent[1] == "1"


def test_claim_of_a_killed_sender_is_sent_again_under_its_id(sender: Sender, receiver: Receiver):
    from notifications import claims, expansion

    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, receiver.url)
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    expansion.expand()
    [bundle] = claims.claim(4, ())  # and is killed
    work(sender)
    assert not receiver.requests
    pass_time(claims.CLAIM_SECONDS)
    work(sender)
    assert [request.uid for request in receiver.requests] == [bundle.deliveries[0].uid]
    # The late result of the killed one changes nothing.
    claims.record_failed(bundle.route_id, bundle.deliveries, "late")
    assert Delivery.objects.get().state == "sent"


def test_target_of_another_secret_key_is_a_visible_problem(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    route = webhook(kim, receiver.url)
    execute("UPDATE notifications_route SET sealed_target = %s", [targets.seal("x")[:-4] + "AAAA"])
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    route.refresh_from_db()
    assert "SECRET_KEY" in route.problem


def test_budget_is_reported_at_each_threshold_once(sender: Sender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch):
    from dataclasses import replace

    from tenants.billing import budgets

    tenant = make_tenant("nlp")
    webhook(make_member(tenant, Role.OWNER, "ada"), receiver.url, tenant)
    budgets.change(tenant.pk, {"hard_gpu_hours": 100.0, "soft_gpu_hours": None, "days": None}, actor="test")
    real = budgets.statuses
    for used in (10, 51, 60, 99.6, 101):
        monkeypatch.setattr(
            budgets, "statuses", lambda *a, u=used, **k: [replace(s, used_gpu_hours=u) for s in real(*a, **k)]
        )
        work(sender)
        work(sender)
    assert [request.json["data"]["percent"] for request in receiver.requests] == [50, 80, 100]
    assert (
        receiver.requests[0].json["data"]["text"].startswith("Tenant nlp has used 51 % of its hard budget: 51.0 of 100")
    )
    assert "has used 99 % of its hard budget: 99.6 of 100" in receiver.requests[1].json["data"]["text"]


def test_incidents_go_to_admins_only(sender: Sender, receiver: Receiver):
    root = make_user("root", admin=True)
    make_node(name="n1", gpus=1)
    webhook(root, receiver.url, kinds=["incident"])
    execute("UPDATE nodes_device SET health = 'quarantined', health_note = 'Xid 79'")
    work(sender)
    work(sender)
    [request] = receiver.requests
    data = request.json["data"]
    assert (data["node"], data["gpu"], data["kind"]) == ("n1", 0, "quarantined")
    execute("UPDATE auth_user SET is_superuser = false")
    execute("UPDATE nodes_device SET health = 'ok'")
    execute("UPDATE nodes_device SET health = 'quarantined', health_note = 'Xid 79'")
    work(sender)
    assert query("SELECT count(*) AS n FROM notifications_notice")[0]["n"] == 2
    assert len(receiver.requests) == 1


def test_notices_wait_for_the_end_of_quiet_hours_and_come_together(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    hour = timezone.now().hour
    route = mail(kim, f"ntfy://127.0.0.1:{receiver.port}/topic", quiet_from=f"{(hour - 1) % 24:02}:00",
                 quiet_until=f"{(hour + 2) % 24:02}:00")  # fmt: skip
    for number in range(3):
        hook("notify")("reservation_starting", user_id=kim.pk, data={"text": f"number {number}"})
    work(sender)
    assert not receiver.requests
    Route.objects.update(quiet_from=f"{(hour + 2) % 24:02}:00", quiet_until=f"{(hour + 3) % 24:02}:00")
    work(sender)
    [request] = receiver.requests
    assert request.json["title"] == "[gpusched] 3 notices: 3 reservation starting"
    assert [f"number {number}" in request.json["message"] for number in range(3)] == [True] * 3
    assert all(str(delivery.uid) in request.json["message"] for delivery in Delivery.objects.filter(route=route))


def test_quiet_hours_are_those_of_the_time_zone(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    hour = (timezone.now().hour + 9) % 24  # in Tokyo
    mail(kim, f"ntfy://127.0.0.1:{receiver.port}/topic", time_zone="Asia/Tokyo", quiet_from=f"{(hour - 1) % 24:02}:00",
         quiet_until=f"{(hour + 2) % 24:02}:00")  # fmt: skip
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    assert not receiver.requests
    Route.objects.update(time_zone="UTC")
    work(sender)
    assert len(receiver.requests) == 1


def test_digest_collects_for_its_time_and_a_test_does_not_wait(sender: Sender, receiver: Receiver):
    from notifications import routes
    from notifications.models import Channel
    from tests.factories import identity_for

    kim = make_member(make_tenant("nlp"), name="kim")
    route = mail(kim, f"ntfy://127.0.0.1:{receiver.port}/topic", digest_minutes=60)
    for number in range(2):
        hook("notify")("reservation_starting", user_id=kim.pk, data={"text": f"number {number}"})
    work(sender)
    assert not receiver.requests
    routes.send_test(route.pk, Channel.APPRISE, identity_for(kim))
    work(sender)
    [test] = receiver.requests
    assert test.json["message"].startswith("kim tests route mail of kim: it works.")
    pass_time(3600)
    work(sender)
    assert receiver.requests[1].json["title"] == "[gpusched] 2 notices: 2 reservation starting"
    assert len(receiver.requests) == 2


def test_old_deliveries_are_deleted_with_their_notices_and_pending_ones_stay(sender: Sender, receiver: Receiver):
    from notifications import retention

    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, receiver.url)
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "old"})
    work(sender)
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "new"})
    sender.tick()
    execute(
        "UPDATE notifications_delivery SET state = 'pending', ended_at = NULL WHERE id = (SELECT max(id) FROM notifications_delivery)"
    )
    execute("UPDATE notifications_delivery SET ended_at = ended_at - interval '40 days'")
    execute("UPDATE notifications_notice SET expanded_at = expanded_at - interval '40 days'")
    assert retention.drop_old(0) == 0
    assert retention.drop_old(30) == 2
    assert [notice.data["text"] for notice in Notice.objects.all()] == ["new"]


def test_metrics_count_results_and_show_what_waits(sender: Sender, receiver: Receiver):
    from notifications import metrics

    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, receiver.url)
    receiver.statuses = [500]
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    values = {(s.name, *s.labels.values()): s.value for family in metrics.collect() for s in family.samples}
    assert values["gpu_scheduler_notifications_pending",] == 1
    assert values["gpu_scheduler_notification_attempts_total", "failed"] == 1
    assert values["gpu_scheduler_notifications_sender_age_seconds",] < 60
    pass_time(13)
    work(sender)
    values = {(s.name, *s.labels.values()): s.value for family in metrics.collect() for s in family.samples}
    assert values["gpu_scheduler_notifications_pending",] == 0
    assert values["gpu_scheduler_notification_attempts_total", "sent"] == 1


def test_people_get_what_happens_in_a_burst_together(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    mail(kim, f"ntfy://127.0.0.1:{receiver.port}/topic")
    for number in range(3):
        hook("notify")("reservation_starting", user_id=kim.pk, data={"text": f"number {number}"})
        work(sender)
    assert len(receiver.requests) == 1
    pass_time(30)
    work(sender)
    assert receiver.requests[1].json["title"] == "[gpusched] 2 notices: 2 reservation starting"


def test_long_message_has_all_ids_and_the_details_of_the_first_notices(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    mail(kim, f"ntfy://127.0.0.1:{receiver.port}/topic")
    for number in range(10):
        hook("notify")("reservation_starting", user_id=kim.pk, data={"text": f"number {number} " + 1500 * "x"})
    work(sender)
    text = "".join(request.json["message"] for request in receiver.requests)
    assert [f"number {number} " in text for number in range(10)] == [True] * 3 + [False] * 7
    assert all(str(delivery.uid) in text for delivery in Delivery.objects.all())
    assert {delivery.state for delivery in Delivery.objects.all()} == {"sent"}
