"""A backlog for people arrives in full messages, without a long rest between them."""

import pytest

from gpusched.lib.db.sql import execute, rows
from gpusched.lib.hooks import hook
from notifications.sending.sender import Sender
from tests.factories import make_member, make_tenant
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import mail, pass_time, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_people_get_full_messages_at_once_and_the_remainder_after_the_rest(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    mail(kim, f"ntfy://127.0.0.1:{receiver.port}/topic")
    for number in range(250):
        hook("notify")("reservation_starting", user_id=kim.pk, data={"text": f"number {number}"})
    states = "SELECT state, count(*) FROM notifications_delivery GROUP BY state"
    work(sender, ticks=1)
    pass_time(1)
    work(sender, ticks=1)
    assert dict(rows(states)) == {"sent": 200, "pending": 50}
    pass_time(1)
    work(sender, ticks=1)
    assert dict(rows(states)) == {"sent": 200, "pending": 50}
    pass_time(20)
    work(sender, ticks=1)
    assert dict(rows(states)) == {"sent": 250}


@pytest.mark.parametrize(
    "end", ["DELETE FROM tenants_membership WHERE user_id = %s", "UPDATE auth_user SET is_active = false WHERE id = %s"]
)
def test_notices_that_wait_for_a_digest_do_not_reach_a_user_who_left(sender: Sender, receiver: Receiver, end: str):
    nlp = make_tenant("nlp")
    kim, lin = make_member(nlp, name="kim"), make_member(nlp, name="lin")
    for user in (kim, lin):
        mail(user, f"ntfy://127.0.0.1:{receiver.port}/{user.username}", digest_minutes=60)
    hook("notify")("reservation_starting", tenant_id=nlp.pk, data={"text": "of the tenant"})
    work(sender)
    execute(end, [kim.pk])
    pass_time(3600)
    work(sender)
    assert [request.json["topic"] for request in receiver.requests] == ["lin"]
    assert rows("SELECT state, error FROM notifications_delivery ORDER BY state") == [
        ("failed", "the owner of the route no longer sees this"), ("sent", "")
    ]  # fmt: skip
