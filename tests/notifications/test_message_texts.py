"""The texts of messages, and their links."""

from datetime import UTC, datetime
from typing import Any

import pytest
from django.conf import LazySettings
from django.urls import resolve

from notifications import links, messages
from notifications.messages import MAX_DETAILS, Rendered
from notifications.models import Kind

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)

DATA = {
    "job_id": 7, "name": "train", "user": "kim", "tenant": "nlp", "state": "completed", "sentence": "", "next_step": "",
    "ran": "3 s", "gpus": 1, "nodes": ["n1"], "url": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "Ran for 3 s on 1 GPU of n1"),
        ({"gpus": 11, "nodes": ["n1", "n2"]}, "Ran for 3 s on 11 GPUs of n1, n2"),
        ({"gpus": 0}, "Ran for 3 s on n1"),
        ({"nodes": []}, "Ran for 3 s on 1 GPU"),
        ({"gpus": 0, "nodes": []}, "Ran for 3 s"),
    ],
)
def test_place_of_a_job_is_a_sentence(changes: dict[str, Any], line: str) -> None:
    _, text = messages._job_text(Kind.JOB_ENDED, {**DATA, **changes})
    assert text.splitlines() == ["Owner: kim in nlp", line]


def test_failures_of_a_long_message_have_their_details() -> None:
    """A message has no room for the details of all its notices, and 100 jobs that completed need none."""
    long = "x" * (MAX_DETAILS // 3)
    ended = [Rendered(f"e{n}", Kind.JOB_ENDED, NOW, f"ended {n}", long, {}) for n in range(4)]
    failed = Rendered("f", Kind.JOB_FAILED, NOW, "failed", "its log", {})
    title, text = messages.together([*ended, failed])
    assert title == "[gpusched] 5 notices: 4 job ended, 1 job failed"
    assert text.startswith("failed\nits log\nid f\n\nended 0\n")
    assert [line for line in text.splitlines() if line.startswith("id ")] == [
        "id f",
        "id e0",
        "id e1",
        "id e2",
        "id e3",
    ]


@pytest.mark.parametrize("kind", Kind)
def test_link_is_the_address_of_a_page(settings: LazySettings, kind: str) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://*.example", "https://gpu.example:8443", "https://other.example"]
    url = links.page_of(kind, {"job_id": 7, "tenant": "nlp", "node": "n2"})
    assert url is not None
    origin, path = url[:24], url[24:]
    assert origin == "https://gpu.example:8443"
    assert resolve(path).view_name in ("job", "tenant", "calendar", "node", "notifications")


def test_names_in_links_are_quoted(settings: LazySettings) -> None:
    settings.CSRF_TRUSTED_ORIGINS = ["https://gpu.example"]
    assert links.page_of(Kind.INCIDENT, {"node": "n?2"}) == "https://gpu.example/nodes/n%3F2/"


def test_server_without_a_name_for_browsers_sends_no_links(settings: LazySettings) -> None:
    settings.CSRF_TRUSTED_ORIGINS = []
    assert links.page_of(Kind.JOB_ENDED, {"job_id": 7}) is None


def test_link_of_a_failed_job_comes_before_its_log() -> None:
    data = {**DATA, "url": "https://gpu.example/jobs/7/", "log": ["Traceback"]}
    _, text = messages._job_text(Kind.JOB_FAILED, data)
    assert text.splitlines()[1:] == [
        "Ran for 3 s on 1 GPU of n1", "https://gpu.example/jobs/7/", "", "Last lines of its log:", "Traceback",
    ]  # fmt: skip
