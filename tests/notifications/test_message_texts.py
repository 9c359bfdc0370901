"""The texts of messages about jobs."""

from datetime import UTC, datetime
from typing import Any

import pytest

from notifications import messages
from notifications.messages import MAX_DETAILS, Rendered
from notifications.models import Kind

NOW = datetime(2026, 3, 4, 12, tzinfo=UTC)

DATA = {
    "job_id": 7, "name": "train", "user": "kim", "tenant": "nlp", "state": "completed", "sentence": "", "next_step": "",
    "ran": "3 s", "gpus": 1, "nodes": ["n1"],
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
