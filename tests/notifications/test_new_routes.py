"""Routes that begin to ask for something: they get nothing from before."""

import pytest

from gpusched.lib.db.sql import execute
from gpusched.protocol.states import Role
from notifications import routes
from notifications.models import Channel
from notifications.sending.sender import Sender
from tests.factories import identity_for, make_member, make_node, make_tenant, make_user, run_cycle, submit
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import pass_time, webhook, work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("change", [{"kinds": ["incident"]}, {"is_enabled": True}])
def test_route_that_asks_for_incidents_from_now_on_gets_no_old_ones(
    sender: Sender, receiver: Receiver, change: dict[str, object]
):
    root = make_user("root", admin=True)
    asked = {"is_enabled": True, "kinds": ["job_failed"]} if "kinds" in change else {"kinds": ["incident"]}
    route = webhook(root, receiver.url, **asked)
    if "kinds" not in change:
        routes.change(route.pk, Channel.WEBHOOK, {"is_enabled": False}, identity_for(root))
    make_node(name="n1", gpus=1)
    execute("UPDATE nodes_device SET health = 'quarantined', health_note = 'Xid 79'")
    work(sender)
    execute("UPDATE nodes_device SET health = 'ok'")
    routes.change(route.pk, Channel.WEBHOOK, change, identity_for(root))
    work(sender)
    assert not receiver.requests
    execute("UPDATE nodes_device SET health = 'quarantined', health_note = 'Xid 48'")
    work(sender)
    assert [request.json["data"]["cause"] for request in receiver.requests] == ["Xid 48"]


def test_route_created_while_the_sender_was_down_gets_nothing_from_before(sender: Sender, receiver: Receiver):
    tenant = make_tenant("nlp")
    kim = make_member(tenant, name="kim")
    webhook(make_member(tenant, Role.OWNER, "ada"), receiver.url, tenant)
    agent = make_node(gpus=1)
    submit(kim, tenant)
    run_cycle()
    agent.end(*agent.start_all(), exit_code=3)
    webhook(kim, receiver.url)
    work(sender)
    pass_time(10)
    work(sender)
    assert len(receiver.requests) == 1
