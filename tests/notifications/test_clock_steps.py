"""Steps of the clock of the database's host."""

from collections.abc import Callable

import pytest
from django.contrib.auth.models import User

from notifications.models import Route
from notifications.sending.sender import Sender
from tests.factories import make_member, make_node, make_tenant
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import mail, pass_time, webhook, work
from tests.notifications.test_sending import ended_job

pytestmark = pytest.mark.django_db(transaction=True)


def to_chat(owner: User, receiver: Receiver) -> Route:
    return mail(owner, f"ntfy://127.0.0.1:{receiver.port}/topic")


def to_webhook(owner: User, receiver: Receiver) -> Route:
    return webhook(owner, receiver.url)


@pytest.fixture(params=[to_chat, to_webhook])
def end_job(
    request: pytest.FixtureRequest, transactional_db: None, sender: Sender, receiver: Receiver
) -> Callable[[], object]:
    """Ends a job of a user with a route."""
    tenant, agent = make_tenant(), make_node()
    kim = make_member(tenant)
    request.param(kim, receiver)
    return lambda: ended_job(kim, tenant, agent=agent)


def test_route_that_works_sends_at_once_after_the_clock_was_set_back(
    end_job: Callable[[], object], sender: Sender, receiver: Receiver
):
    end_job()
    pass_time(60)
    work(sender)
    assert len(receiver.requests) == 1
    pass_time(-3600)
    end_job()
    pass_time(60)
    work(sender)
    assert len(receiver.requests) == 2


def test_route_that_failed_sends_again_after_the_clock_was_set_back(
    end_job: Callable[[], object], sender: Sender, receiver: Receiver
):
    """At a boot with a wrong clock the network may not be up yet."""
    receiver.statuses = [503]
    end_job()
    work(sender, ticks=1)
    pass_time(-30 * 86_400)
    work(sender)
    assert len(receiver.requests) == 2
