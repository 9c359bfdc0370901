"""Mail to several people, of whom the server refuses some: the others get each message once."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import AuthResult

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
    server = Controller(
        post, hostname="127.0.0.1", port=free_port(), authenticator=lambda *_: AuthResult(success=False, handled=False),
        auth_require_tls=False,
    )  # fmt: skip
    server.start()
    post.port = server.port
    yield post
    server.stop()


def notify(sender: Sender, post: Post, recipients: str, login: str = "") -> None:
    kim = make_member(make_tenant("nlp"), name="kim")
    mail(kim, f"mailto://{login}127.0.0.1:{post.port}?from=a@example.com&{recipients}")
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


@pytest.mark.parametrize(
    ("login", "answer", "problem"),
    [
        ("", "550 no mailbox here", "550 no mailbox here"),
        ("", "451 full at present", "451 full at present"),
        ("kim:wr0ngWord@", "", "535 5.7.8 Authentication credentials invalid"),
    ],
)
def test_problem_of_a_route_has_the_answer_of_the_mail_server(
    sender: Sender, post: Post, login: str, answer: str, problem: str
):
    """Of a wrong password it said "Connection error", of a mailbox that is gone "failed"."""
    post.answer = answer
    notify(sender, post, "to=gone@example.com", login)
    found = Route.objects.get().problem
    assert problem in found
    assert "wr0ngWord" not in found and "kim" not in found


def test_problem_of_a_route_has_the_error_of_the_connection(sender: Sender, post: Post):
    post.port = free_port()
    notify(sender, post, "to=ann@example.com")
    assert "Connection refused" in Route.objects.get().problem
