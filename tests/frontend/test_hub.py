"""The state of the hub, and refusals of topics and pages."""

from typing import Any

from frontend.live import hub as hubs
from frontend.live.loader import Update
from frontend.live.topics import view
from tenants.auth.page_access import Session


class Box:
    """An outbox that records its messages."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def plain(self, message: str) -> None:
        self.said.append(message)

    def drop(self, topic: str) -> None:
        pass


async def close(code: int) -> None:
    raise AssertionError(code)


def page(*topics: str) -> Any:
    return hubs.Client(Session(1, "key", "password"), Box(), close, topics=set(topics), needs_snapshot=set(topics))  # type: ignore[arg-type]


def test_missing_topic_is_refused_once():
    """And watched no more."""
    client = page("job:1", "nodes")
    hubs._send_update(client, "job:1", Update(None, None, None), is_low_priority=False)
    assert (client.topics, client.needs_snapshot) == ({"nodes"}, {"nodes"})
    assert client.outbox.said == ['{"topic":"job:1","error":"not_found"}']


def test_unwatched_topics_are_dropped():
    hub = hubs.LiveHub()
    client = page("nodes")
    hub._clients.add(client)
    observed = [view(topic, client.viewer) for topic in ("nodes", "job:1")]
    hub._rows = {entry: {} for entry in observed}
    hub._loaded_at = {"nodes": 0.0, "job:1": 0.0}
    hub._drop_unwatched()
    assert (list(hub._rows), list(hub._loaded_at)) == (observed[:1], ["nodes"])


async def test_join_asks_to_retry_without_database(monkeypatch):
    """And not to log in again: it is the database that does not answer."""
    hub = hubs.LiveHub()
    monkeypatch.setattr(hub, "start", lambda: None)

    async def nothing(work):
        return None

    monkeypatch.setattr(hub._db, "query", nothing)
    client = page()
    assert await hub.join(client) == hubs.TRY_AGAIN_LATER
    hub.leave(client)
    assert not hub._clients
