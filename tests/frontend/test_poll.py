"""Polling returns the same rows for the same viewer."""

import pytest
from django.test import Client

from frontend.live import feed
from frontend.live.hub import MAX_TOPICS
from tests.factories import make_member, make_node, make_tenant, submit
from tests.frontend.page import compared

pytestmark = pytest.mark.django_db(transaction=True)


def ask(client, *topics):
    return client.get("/live/", {"topic": topics})


@pytest.fixture
def browser(anna):
    client = Client()
    client.force_login(anna)
    return client


def test_poll_returns_feed_rows(browser, anna, ours):
    make_node(gpus=1)
    job_id = submit(anna, ours)
    topics = ["nodes", "readings", "queue:0-5?tenant=ours", f"job:{job_id}", "mine", "notices"]
    payload = ask(browser, *topics).json()
    assert payload["errors"] == {}
    assert compared(payload["topics"]) == {topic: compared(feed.rows(topic, [ours.pk], anna.pk)) for topic in topics}
    assert payload["topics"]["mine"][f"job:{job_id}"]["part"] == "waiting"


def test_poll_hides_other_tenants(browser):
    """A08"""
    theirs = make_tenant("theirs")
    job_id = submit(make_member(theirs, name="zoe"), theirs, name="hidden")
    answer = ask(browser, "jobs", "queue", "tenant:theirs", f"job:{job_id}", "job:999", "secrets")
    assert answer.json()["errors"] == {
        "secrets": "unknown_topic", "tenant:theirs": "not_found", f"job:{job_id}": "not_found", "job:999": "not_found",
    }  # fmt: skip
    text = answer.content.decode().replace("tenant:theirs", "")
    assert not [word for word in ("theirs", "zoe", "hidden") if word in text]


def test_poll_redirects_to_login_without_session():
    answer = ask(Client(), "jobs")
    assert (answer.status_code, answer["Location"].partition("?")[0]) == (302, "/login/")


def test_poll_limits_topics(browser):
    payload = ask(browser, *(f"job:{number}" for number in range(1, MAX_TOPICS + 2))).json()
    assert payload["errors"][f"job:{MAX_TOPICS + 1}"] == "too_many_topics"


def test_poll_rejects_post(browser):
    assert browser.post("/live/").status_code == 405
