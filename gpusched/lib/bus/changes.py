"""What processes tell each other: which rows of which topics changed, and how that is put together."""

from collections.abc import Collection, Mapping

# {topic: ids}; no ids: any of them.
Changes = Mapping[str, Collection[int]]
EVERYTHING: dict[str, list[int]] = {
    topic: [] for topic in ("jobs", "nodes", "tenants", "assignments", "stops", "logs", "notices")
}
# PostgreSQL refuses payloads of 8000 bytes; beyond this many ids a message just says "any of them".
MAX_IDS = 500


def add(known: dict[str, set[int]], news: Changes) -> None:
    """Adds `news` to what is known to have changed."""
    for topic, ids in news.items():
        before = known.get(topic)
        both = set(ids) if before is None else before | set(ids)
        is_any = not ids or before == set() or len(both) > MAX_IDS
        known[topic] = set() if is_any else both
