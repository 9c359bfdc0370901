"""A sender, a receiver, and the people that a notice can be for."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from django.conf import settings

from notifications.sending.sender import Sender
from tests.notifications.receiver import Receiver, receiving

LOOPBACK = "127.0.0.0/8"


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An admin allowed targets on this machine."""
    monkeypatch.setattr(settings, "ENV", replace(settings.ENV, notify_allowed_networks=LOOPBACK))


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver


@pytest.fixture
def sender(loopback: None) -> Iterator[Sender]:
    sender = Sender()
    yield sender
    sender.stop()
