"""Change messages between processes: which rows of which topics changed, and how to merge them."""

from collections.abc import Collection, Mapping
from typing import Literal, get_args

# "assignments": nodes with new orders. "credentials": nodes whose credential was replaced. "stops": jobs to stop, or
# whose time limit changed. "notices": users who have read theirs. "endpoints": those with new requests. "tasks":
# requests that have ended.
Topic = Literal[
    "jobs", "nodes", "tenants", "readings", "logs", "assignments", "stops", "notices", "endpoints", "tasks",
    "reservations", "credentials",
]  # fmt: skip
# {topic: ids}; no ids: any row may have changed.
Changes = Mapping[str, Collection[int]]
# All that a listener may have missed while it was not connected.
EVERYTHING: dict[str, list[int]] = {topic: [] for topic in get_args(Topic)}
# PostgreSQL rejects payloads of 8000 bytes: with more ids than this, a message names none, which means any row.
MAX_IDS = 500


def add(changes: dict[str, set[int]], news: Changes) -> None:
    """Merge `news` into `changes`."""
    for topic, ids in news.items():
        previous = changes.get(topic)
        merged = set(ids) if previous is None else previous | set(ids)
        is_any = not ids or previous == set() or len(merged) > MAX_IDS
        changes[topic] = set() if is_any else merged
