"""Messages are plain text: a service that reads HTML or Markdown shows each character of a log as it is."""

import email
import email.policy
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import requests
from aiosmtpd.controller import Controller

from notifications import services
from notifications.sending.child import SendingProcess
from notifications.sending.message import Message
from tests.system.stack import free_port

TITLE = "[gpusched] <b>train</b> failed"
TEXT = 'Last lines of its log:\n  File "<stdin>", line 1, in <module>\nValueError: a < b & c, *x* [link](https://x.org)'


@pytest.fixture
def process() -> Iterator[SendingProcess]:
    process = SendingProcess("127.0.0.1")
    yield process
    process.end()


def test_mail_is_plain_text_with_its_lines(process: SendingProcess):
    received: list[bytes] = []

    class Handler:
        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 aiosmtpd's name
            received.append(envelope.content)
            return "250 OK"

    server = Controller(Handler(), hostname="127.0.0.1", port=free_port())
    server.start()
    try:
        target = f"mailto://127.0.0.1:{server.port}?from=a@example.com&to=b@example.com"
        result = process.send(Message(target=target, title=TITLE, body=TEXT))
    finally:
        server.stop()
    assert result.is_sent, result.error
    message = email.message_from_bytes(received[0], policy=email.policy.default)
    assert (message.get_content_type(), message["subject"]) == ("text/plain", TITLE)
    assert message.get_content().splitlines() == TEXT.splitlines()


def test_text_for_telegram_is_escaped(monkeypatch: pytest.MonkeyPatch):
    """It refuses what is no HTML."""
    sent: list[Any] = []

    def request(session: requests.Session, method: str, url: str, **options: Any) -> requests.Response:
        sent.append(msgspec.json.decode(options["data"]))
        response = requests.Response()
        response.status_code = 200
        return response

    monkeypatch.setattr(requests.Session, "request", request)
    telegram = services.open_service("tgram://123456789:abcdefg_hijklmnop/12315544/")
    assert services.send_text(telegram, TITLE, TEXT)
    [message] = sent
    assert message["parse_mode"] == "HTML"
    assert "&lt;stdin&gt;" in message["text"] and "a &lt; b &amp; c" in message["text"]
    assert "&lt;b&gt;train&lt;/b&gt;" in message["text"]
