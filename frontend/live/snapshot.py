"""The rows of several topics at one moment: the answer to a poll, and the first state of a page."""

from collections.abc import Collection, Mapping
from typing import Any

import msgspec
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from frontend.live import feed
from frontend.live.topics import Rows, kind_of
from gpusched.lib.times import rfc3339
from scheduling.status.cluster import scheduler_lag
from tenants.auth.identity import Identity

# Without these characters no text can end the script element.
_ESCAPES = {ord(character): f"\\u{ord(character):04X}" for character in "<>&"}
_NEEDS_SCRIPT = SafeString('<noscript><p class="note" role="note">This page needs JavaScript.</p></noscript>')


def load(topics: Collection[str], caller: Identity) -> dict[str, Any]:
    """Load topics for a caller, with an error for each that does not exist for them."""
    known = [topic for topic in topics if kind_of(topic)]
    answer = represent(feed.load_for(known, caller.visible_tenants(), caller.user_id))
    answer["errors"] |= {topic: "unknown_topic" for topic in topics if topic not in known}
    return answer


def represent(rows_by_topic: Mapping[str, Rows | None]) -> dict[str, Any]:
    """Return `{"alive", "cycle_age_seconds", "topics": {topic: rows}, "errors": {topic: code}}`."""
    return {
        "alive": rfc3339(timezone.now()),
        "cycle_age_seconds": scheduler_lag()["age_seconds"],
        "topics": {topic: rows for topic, rows in rows_by_topic.items() if rows is not None},
        "errors": {topic: "not_found" for topic, rows in rows_by_topic.items() if rows is None},
    }


def carried(kind: str, value: object) -> SafeString:
    """Return data that the page's script draws, as a script element with the attribute `data-<kind>`."""
    text = SafeString(msgspec.json.encode(value).decode().translate(_ESCAPES))  # nosec B703 - escaped
    return _NEEDS_SCRIPT + format_html('<script type="application/json" data-{}>{}</script>', kind, text)
