"""Targets that accept a connection and never answer: they delay no messages to others."""

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest

from gpusched.lib.hooks import hook
from notifications import services, targets
from notifications.models import Delivery, Route
from notifications.sending.sender import THREADS, Sender
from notifications.sending.shares import SLOW_SECONDS, Shares, destination_of
from tests.factories import make_member, make_tenant
from tests.notifications.receiver import Receiver
from tests.notifications.scenes import webhook
from tests.waiting import wait_for

pytestmark = pytest.mark.django_db(transaction=True)


@dataclass
class Silent:
    """A server that never answers, and the connections to it."""

    url: str
    connections: list[socket.socket] = field(default_factory=list)


@pytest.fixture
def silent() -> Iterator[Silent]:
    with socket.create_server(("127.0.0.2", 0), backlog=50) as server:
        result = Silent(f"http://127.0.0.2:{server.getsockname()[1]}/hook")

        def accept() -> None:
            with suppress(OSError):
                while True:
                    result.connections.append(server.accept()[0])

        threading.Thread(target=accept, daemon=True).start()
        yield result
        server.shutdown(socket.SHUT_RDWR)
    for connection in result.connections:
        connection.close()


def notify(text: str, user_id: int) -> None:
    hook("notify")("reservation_starting", user_id=user_id, data={"text": text})


def test_many_routes_to_a_silent_target_leave_a_thread_for_another(sender: Sender, receiver: Receiver, silent: Silent):
    kim = make_member(make_tenant("nlp"), name="kim")
    for number in range(3 * THREADS):
        webhook(kim, silent.url, name=f"dead-{number}")
    webhook(kim, receiver.url, name="works")
    notify("x", kim.pk)

    def is_received() -> bool:
        sender.tick()
        return bool(receiver.requests)

    wait_for(is_received, 90, "the request of the route that works")
    assert Route.objects.exclude(failures=0).count() < THREADS, "it waited for no second round of the silent target"


def test_slow_destinations_leave_half_of_the_threads():
    shares, sealed = Shares(4), {name: targets.seal(f"https://{name}/hook") for name in ("a", "b", "c", "quick")}
    for name in ("a", "b", "c"):
        shares.record(name, 2 * SLOW_SECONDS)
    now = shares.round(["b"])
    assert [now.take(sealed[name]) for name in ("b", "a", "c", "quick", "quick")] == [False, True, False, True, True]
    shares.record("b", 0.1)
    assert shares.round(["b"]).take(sealed["b"])


def test_routes_of_one_service_share_a_destination():
    names = {
        "https://hooks.example.com:8443/a?b": "hooks.example.com",
        "mailto://ada:secret@Example.com": "example.com",
        "mailtos://ada:secret@example.com?smtp=Smtp.example.com&to=kim@example.org": "smtp.example.com",
        "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ": "Slack",
        "ntfy://topic": "ntfy",
        "ntfys://ntfy.example.com/topic": "ntfy.example.com",
    }
    assert {target: services.destination(target) for target in names} == names
    assert destination_of("sealed with another key") == ""


def test_stop_interrupts_a_send_and_does_not_repeat_it(sender: Sender, silent: Silent):
    kim = make_member(make_tenant("nlp"), name="kim")
    webhook(kim, silent.url)
    notify("x", kim.pk)

    def is_connected() -> bool:
        sender.tick()
        return bool(silent.connections)

    wait_for(is_connected, 60, "a connection to the silent target")
    sender.stop()
    assert len(silent.connections) == 1
    assert (Delivery.objects.get().state, Route.objects.get().failures) == ("pending", 0)
