"""Sends that fail in unusual ways: each is reported, paused and ended like a refusal, and none delays others."""

import pytest

from gpusched.lib.hooks import hook
from gpusched.protocol.states import Role
from jobs.logs import store
from notifications import claims, expansion, messages
from notifications.models import Delivery, Route
from notifications.sending.sender import Sender
from tests.factories import make_member, make_tenant
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import pass_time, webhook, work
from tests.notifications.test_sending import ended_job

pytestmark = pytest.mark.django_db(transaction=True)


def test_failed_job_is_reported_while_its_log_cannot_be_read(
    sender: Sender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: int) -> store.LogChunk:
        raise OSError("the storage is away")

    tenant = make_tenant("nlp")
    webhook(make_member(tenant, Role.OWNER, "ada"), receiver.url, tenant)
    ended_job(make_member(tenant, name="kim"), tenant, exit_code=3)
    monkeypatch.setattr(store, "read", fail)
    work(sender)
    pass_time(3)
    work(sender)
    assert [request.json["data"]["log"] for request in receiver.requests] == [
        ["[gpusched: the log cannot be read now]"]
    ]


def test_receiver_may_ask_for_any_pause(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, receiver.url)
    receiver.status, receiver.headers = 503, {"Retry-After": "9" * 400}
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    assert Route.objects.get().problem == "the receiver answered 503"


def test_unexpected_error_of_a_send_is_a_visible_problem_and_pauses(
    sender: Sender, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> list[object]:
        raise ValueError("no text")

    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, receiver.url)
    monkeypatch.setattr(messages, "render", fail)
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    for failures in (1, 2):
        pass_time(13)
        work(sender)
        route = Route.objects.get()
        assert (route.failures, route.problem) == (failures, "the send failed (ValueError)")


def test_late_release_leaves_the_claim_of_another_sender(loopback: None):
    """Else its result would not count, and the message would be sent twice."""
    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, "http://127.0.0.1/hook")
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    expansion.expand()
    [slow] = claims.claim(4, ())
    pass_time(claims.CLAIM_SECONDS)
    [other] = claims.claim(4, ())
    claims.release(slow.deliveries)
    claims.record_sent(other.route_id, other.deliveries, 200)
    assert Delivery.objects.get().state == "sent"
