"""Notifications are sent at least once, each under one id, whatever is killed: with a real receiver of webhooks and a real
mail server."""

import email
import email.policy
import logging
import random
import re
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from aiosmtpd.controller import Controller

from gpusched.client import Client
from tests.notifications.receiver import Receiver, receiving
from tests.system.stack import Stack, free_port
from tests.waiting import until_random_moment, wait_for

pytestmark = [pytest.mark.e2e, pytest.mark.long, pytest.mark.timeout(600)]
EVENTS, WORKERS = 500, 4
VICTIMS = ("worker housekeeping", "notifications.sending.process", "daphne", "postgres")


class Mailbox:
    """The messages that the mail server accepted."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:  # noqa: N802 aiosmtpd's name
        message = email.message_from_bytes(envelope.content, policy=email.policy.default)
        body = message.get_body(("plain", "html"))
        assert body is not None
        self.texts.append(f"{message['subject']}\n{body.get_content()}")
        return "250 OK"

    def ids_by_job(self) -> dict[int, set[str]]:
        found: dict[int, set[str]] = defaultdict(set)
        for text in self.texts:
            jobs = re.findall(r"\(job (\d+)\)", text)
            uids = re.findall(r"id ([0-9a-f]{8}-[0-9a-f-]{27})", text)
            assert len(jobs) == len(uids), text
            for job, uid in zip(jobs, uids, strict=True):
                found[int(job)].add(uid)
        return found


@contextmanager
def mail_server() -> Iterator[tuple[Mailbox, int]]:
    mailbox, port = Mailbox(), free_port()
    controller = Controller(mailbox, hostname="127.0.0.1", port=port)
    logging.getLogger("mail.log").setLevel(logging.WARNING)
    controller.start()
    try:
        yield mailbox, port
    finally:
        controller.stop()


def test_500_events_are_each_delivered_under_one_id_while_everything_is_killed() -> None:
    with mail_server() as (mailbox, port), receiving() as receiver:
        with Stack(notify_allowed_networks="127.0.0.0/8") as stack:
            stack.fleet(1)
            with stack.client() as client:
                jobs = [client.submit(["true"], not_before="2099-01-01T00:00:00Z").id for _ in range(EVENTS)]
                client.create_webhook("ci", receiver.url, ["job_ended"], tenant="default")
                target = f"mailto://127.0.0.1:{port}?from=a@example.com&to=b@example.com"
                route = client.create_notification_route("mail", target, ["job_ended"], tenant="default")
            kills = cancel_while_killing(stack, jobs)
            assert kills >= 5
            expected = set(jobs)
            wait_for(lambda: expected <= delivered(receiver).keys(), 240, "all webhooks", pause=0.5)
            wait_for(lambda: expected <= mailbox.ids_by_job().keys(), 240, "all messages", pause=0.5)
            for sent in (delivered(receiver), mailbox.ids_by_job()):
                assert {job: uids for job, uids in sent.items() if len(uids) != 1} == {}
                assert len({uid for uids in sent.values() for uid in uids}) == EVENTS
            with stack.client() as client:
                wait_for(
                    lambda: client.notification_route(route.id).pending == 0, 120, "all to be confirmed", pause=0.5
                )
                assert client.notification_route(route.id).failed == 0
    print(f"{kills} kills, {len(receiver.requests)} requests, {len(mailbox.texts)} messages for {EVENTS} events")


def delivered(receiver: Receiver) -> dict[int, set[str]]:
    found: dict[int, set[str]] = defaultdict(set)
    for request in list(receiver.requests):
        found[request.json["data"]["job_id"]].add(request.uid)
    return found


def cancel_while_killing(stack: Stack, jobs: list[int]) -> int:
    """Cancels all jobs from several threads, and kills a part every few seconds meanwhile. Returns the kills."""
    chance, kills = random.Random(1), 0
    waiting = list(jobs)
    threads = [threading.Thread(target=cancel_all, args=(stack, waiting)) for _ in range(WORKERS)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads) or kills < 5:
        until_random_moment(chance, 1.0, 3.0)
        kills += bool(stack.kill(VICTIMS[kills % len(VICTIMS)]))
    for thread in threads:
        thread.join()
    return kills


def cancel_all(stack: Stack, waiting: list[int]) -> None:
    chance = random.Random(2)
    with Client(stack.url, stack.token(), tenant="default", patience_seconds=120) as client:
        while waiting:
            try:
                job = waiting.pop()
            except IndexError:
                return
            client.cancel(job)
            until_random_moment(chance, 0.05, 0.25)
