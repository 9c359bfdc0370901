"""Mail to several people, of whom the server refuses some: the others get each message once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from gpusched.lib.hooks import hook
from notifications.models import Delivery, Route
from notifications.sending.sender import Sender
from tests.factories import make_member, make_tenant
from tests.notifications.scenes import mail, pass_time, work
from tests.system.stack import free_port

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Post:
    """A mail server. It refuses recipients whose address begins with `gone`, by this answer."""

    answer: str = "550 no such user"
    port: int = 0
    received: list[list[str]] = field(default_factory=list)

    async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:  # noqa: N802
        if address.startswith("gone"):
            return self.answer
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802
        self.received.append(list(envelope.rcpt_tos))
        return "250 OK"


@pytest.fixture
def post() -> Iterator[Post]:
    post = Post()
    server = Controller(post, hostname="127.0.0.1", port=free_port())
    server.start()
    post.port = server.port
    yield post
    server.stop()


def notify(sender: Sender, post: Post, recipients: str) -> None:
    kim = make_member(make_tenant("nlp"), name="kim")
    mail(kim, f"mailto://127.0.0.1:{post.port}?from=a@example.com&{recipients}")
    hook("notify")("reservation_starting", user_id=kim.pk, data={"text": "x"})
    work(sender)
    pass_time(60)
    work(sender)


@pytest.mark.parametrize(
    ("recipients", "received"),
    [
        ("to=ann@example.com,gone@example.com,bob@example.com", [["ann@example.com"], ["bob@example.com"]]),
        ("to=ann@example.com&cc=gone@example.com", [["ann@example.com"]]),
    ],
)
def test_refused_recipient_repeats_no_message_to_the_others(
    sender: Sender, post: Post, recipients: str, received: list[list[str]]
):
    notify(sender, post, recipients)
    assert post.received == received
    assert (Delivery.objects.get().state, Route.objects.get().failures) == ("sent", 0)
    assert Route.objects.get().problem.startswith("not all recipients were accepted")


def test_recipient_who_is_refused_for_now_is_tried_again(sender: Sender, post: Post):
    post.answer = "451 try again later"
    notify(sender, post, "to=ann@example.com,gone@example.com")
    assert (Delivery.objects.get().state, len(post.received)) == ("pending", 2)


def test_mail_that_nobody_accepts_is_tried_again(sender: Sender, post: Post):
    notify(sender, post, "to=gone@example.com")
    assert (Delivery.objects.get().state, Route.objects.get().failures) == ("pending", 2)
