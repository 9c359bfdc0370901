"""Messages that quiet hours or a digest delayed: they say what is true when they are sent."""

import pytest
from django.contrib.auth.models import User

from gpusched.lib.db.sql import execute
from gpusched.protocol.rest.time_limits import Extension
from notifications.sending.sender import Sender
from scheduling.whatif.extend import extend
from tests.factories import FakeAgent, identity_for, make_member, make_node, make_tenant, run_cycle, submit
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import mail, pass_time, work

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kim() -> User:
    return make_member(make_tenant("nlp"), name="kim")


def digest(kim: User, sender: Sender, receiver: Receiver) -> tuple[FakeAgent, int, str]:
    """Let a job be about to end while a route collects. Return its node, its id and its rank."""
    mail(kim, f"ntfy://127.0.0.1:{receiver.port}/topic", kinds=["job_about_to_end"], digest_minutes=60)
    agent = make_node(gpus=1)
    job_id = submit(kim, kim.memberships.get().tenant, max_runtime_minutes=100)
    run_cycle()
    [key] = agent.start_all()
    execute("UPDATE jobs_job SET started_at = now() - interval '86 minutes'")
    work(sender)
    assert not receiver.requests
    return agent, job_id, key


def sent(sender: Sender, receiver: Receiver) -> str:
    pass_time(3601)
    work(sender)
    [request] = receiver.requests
    return f"{request.json['title']}\n{request.json['message']}"


def test_warning_of_a_time_limit_names_the_end_that_came_since(kim: User, sender: Sender, receiver: Receiver):
    agent, _, key = digest(kim, sender, receiver)
    agent.end(key, exit_code=None, reason="time_limit")
    text = sent(sender, receiver)
    assert "was about to end" in text and "and has ended since" in text
    assert "Extend it" not in text


def test_warning_of_a_time_limit_names_the_limit_that_was_changed_since(kim: User, sender: Sender, receiver: Receiver):
    _, job_id, _ = digest(kim, sender, receiver)
    extend(job_id, Extension(add_minutes=30), identity_for(kim), is_dry_run=False)
    assert "Its time limit was changed since: it ends at" in sent(sender, receiver)


def test_warning_of_a_time_limit_tells_how_to_extend_the_job_while_that_helps(
    kim: User, sender: Sender, receiver: Receiver
):
    digest(kim, sender, receiver)
    text = sent(sender, receiver)
    assert "is about to end" in text and "Extend it: gpusched extend" in text
