"""A backlog for people arrives in full messages, without a long rest between them."""

import pytest

from gpusched.lib.db.sql import rows
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
