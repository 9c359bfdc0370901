"""Deliveries of a route that is changed."""

from functools import partial

import pytest
from django.db import transaction

from gpusched.lib.hooks import hook
from notifications import claims, expansion, routes
from notifications.models import Channel, Delivery, Route
from notifications.sending.sender import Sender
from tests.factories import identity_for, make_member, make_tenant
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import pass_time, webhook, work
from tests.races.elsewhere import Elsewhere, wait_until_blocked

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


@pytest.mark.parametrize("is_sent", [True, False])
def test_result_of_a_send_waits_for_a_change_of_its_route(is_sent: bool):
    """Each locks the route, then its deliveries: in different orders they would deadlock."""
    kim = make_member(make_tenant("nlp"), name="kim")
    route = webhook(kim, "https://hooks.example.com")
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    expansion.expand()
    [bundle] = claims.claim(4, ())
    changing = Elsewhere(lambda: Route.objects.select_for_update().get(pk=route.pk))
    assert changing.is_done.wait(20)
    recording = Elsewhere(
        partial(claims.record_sent, route.pk, bundle.deliveries, 200)
        if is_sent
        else partial(claims.record_failed, route.pk, bundle.deliveries, "refused")
    )
    wait_until_blocked(recording)
    with transaction.atomic():
        assert list(Delivery.objects.select_for_update(nowait=True).filter(route=route.pk))
    changing.commit()
    recording.commit()
    assert (changing.error, recording.error) == (None, None)
    assert Delivery.objects.get().state == ("sent" if is_sent else "pending")
