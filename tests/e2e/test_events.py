"""Following events through the real web server: at once, over its death, and without taking its threads."""

import threading
import time

import httpx
import pytest

from gpusched.client import Client
from tests.system.stack import Stack
from tests.waiting import wait_for

pytestmark = pytest.mark.e2e


def test_follower_misses_no_event_when_the_web_server_dies(up: Stack) -> None:
    seen: list[int] = []
    with up.client() as client:
        latest = max((event.id for event in client.events(since=0, kind="submitted", follow=False)), default=0)

    def follow() -> None:
        with Client(up.url, up.token()) as client:
            for event in client.events(since=latest, kind="submitted"):
                seen.append(event.job_id)
                if len(seen) == 20:
                    return

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    with Client(up.url, up.token(), patience_seconds=60) as client:
        made = [client.submit(["true"], tenant="default").id for _ in range(10)]
        wait_for(lambda: len(seen) == 10, 10, "ten events")
        assert up.kill("daphne")
        made += [client.submit(["true"], tenant="default").id for _ in range(10)]
    thread.join(30)
    assert seen == made


def test_hundred_streams_hold_no_thread_and_receive_at_once(up: Stack) -> None:
    """A request is answered as quickly as without them; a stream that is left is gone."""
    headers = {"Authorization": f"Bearer {up.token()}", "Accept": "text/event-stream"}
    limits = httpx.Limits(max_connections=None)
    with httpx.Client(base_url=up.url, headers=headers, limits=limits, timeout=30) as http, up.client() as client:
        streams = [http.send(http.build_request("GET", "/api/v1/events"), stream=True) for _ in range(100)]
        assert {stream.status_code for stream in streams} == {200}
        started_at = time.monotonic()
        job = client.submit(["true"], tenant="default")
        assert time.monotonic() - started_at < 5
        for stream in streams:
            assert any(f'"job_id":{job.id},' in line for line in stream.iter_lines())
            stream.close()
