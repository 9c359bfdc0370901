"""Deliveries of a route whose target is changed."""

import pytest

from gpusched.lib.hooks import hook
from notifications import routes
from notifications.models import Channel
from notifications.sending.sender import Sender
from tests.factories import identity_for, make_member, make_tenant
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import pass_time, webhook, work

pytestmark = pytest.mark.django_db(transaction=True)


def test_new_target_gets_at_once_what_the_previous_one_refused(sender: Sender, receiver: Receiver):
    kim = make_member(make_tenant("nlp"), name="kim")
    route = webhook(kim, receiver.url)
    receiver.statuses = [500, 500]
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    pass_time(13)
    work(sender)
    assert len(receiver.requests) == 2
    routes.change(route.pk, Channel.WEBHOOK, {"target": f"{receiver.url}/new"}, identity_for(kim))
    work(sender)
    assert [request.path for request in receiver.requests] == ["/hook", "/hook", "/hook/new"]
    assert len({request.uid for request in receiver.requests}) == 1
