"""Format states, durations, moments and sizes for pages. The page's script formats them alike."""

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from frontend.ui.wait_groups import group_of
from gpusched.protocol import amounts
from gpusched.protocol.times import MOMENT, format_duration

STATE_SYMBOLS: Mapping[str, str] = {
    "busy": "■", "held_idle": "◧", "free": "□", "unavailable": "▨", "ok": "□", "hot": "▲", "quarantined": "✕",
    "dirty": "◆", "foreign": "◆", "degraded": "✕", "lost": "▨", "unknown": "▨",
    "pending": "○", "held": "‖", "scheduled": "◔", "running": "■", "stopping": "◩", "completed": "✓", "failed": "✕",
    "cancelled": "⊘", "preempted": "↺",
    "online": "■", "joined": "○", "open": "□", "cordoned": "‖", "draining": "◩", "ended": "✓", "red": "✕", "amber": "▲",
    "active": "■", "revoked": "⊘", "expired": "⊘",
}  # fmt: skip


_MOMENT = re.compile(MOMENT)
_NOT_YET = mark_safe('<span class="na" title="not yet">\u2013</span>')  # nosec B308


def state(name: str, word: str = "") -> SafeString:
    """Return the badge of a state; `word` replaces its text."""
    shape = "•" if name == "info" else STATE_SYMBOLS.get(name, "▨")
    text = word or name.replace("_", " ")
    return format_html(
        '<span class="state state-{}"><i aria-hidden="true">{}</i> {}</span>', name.replace("_", "-"), shape, text
    )


def duration(seconds: Any) -> str:
    """Format a duration in its two largest units."""
    if seconds is None or seconds == "":
        return "n/a"
    return format_duration(max(0.0, float(seconds)))


def roughly(seconds: Any) -> str:
    """Format a duration in one rounded unit: 40 s, 3 min, 5 h, 2 d."""
    if seconds is None or seconds == "":
        return "n/a"
    total = max(0.0, float(seconds))
    unit, size = ("s", 1) if total < 60 else ("min", 60) if total < 3600 else ("h", 3600)
    return f"{int(total // 86400)} d" if total >= 172800 else f"{int(total // size)} {unit}"


def minutes(value: Any) -> str:
    return "none" if value is None else duration(float(value) * 60)


def ago(value: Any) -> SafeString:
    """Format a moment as an age that the page's script updates; the title has the full time."""
    when = parsed(value)
    if when is None:
        return _NOT_YET
    seconds = (timezone.now() - when).total_seconds()
    text = f"in {roughly(-seconds)}" if seconds < -1 else "just now" if seconds < 5 else f"{roughly(seconds)} ago"
    return _ticking(when, "relative", text, "ago")


def elapsed(since: Any, until: Any = None) -> SafeString:
    """Format the time from a moment until another, or until now."""
    start, end = parsed(since), parsed(until)
    if start is None:
        return _NOT_YET
    if end is not None:
        return format_html('<span class="duration">{}</span>', duration((end - start).total_seconds()))
    return _ticking(start, "since", duration((timezone.now() - start).total_seconds()), "duration")


def clock(value: Any) -> str:
    """Format a moment: 2030-01-31 08:00:00 UTC."""
    when = parsed(value)
    return "" if when is None else f"{when:%Y-%m-%d %H:%M:%S} UTC"


def moment(value: Any) -> SafeString:
    """Format a moment in UTC; the page's script changes it to the viewer's local time."""
    when = parsed(value)
    return _NOT_YET if when is None else _ticking(when, "clock", clock(when), "clock")


def clocked(sentence: str | None) -> SafeString:
    """Format a sentence, with the moments in it as updating times."""
    parts = _MOMENT.split(sentence or "")
    parts_shown = [_clocked_part(part) if at % 2 else part for at, part in enumerate(parts)]
    return format_html_join("", "{}", ([part] for part in parts_shown))


def _clocked_part(written: str) -> str:
    """Format a moment within a sentence. Leave text that only looks like one: sentences can quote users."""
    try:
        return _ticking(datetime.fromisoformat(written.replace(" UTC", "Z")), "clock", written, "clock")
    except ValueError:
        return written


def _ticking(when: datetime, mode: str, text: str, css_class: str) -> SafeString:
    """Return a time element that the page's script updates by `mode`."""
    return format_html(
        '<time datetime="{}" title="{}" class="{}" data-tick="{}">{}</time>',
        when.isoformat(), clock(when), css_class, mode, text,
    )  # fmt: skip


def mib(value: Any) -> str:
    """Format MiB: 512 MiB, 80 GiB."""
    if value is None:
        return "n/a"
    size = int(value)
    return f"{size} MiB" if size < 1024 else f"{size / 1024:.4g} GiB" if size < 1 << 20 else f"{size / 2**20:.4g} TiB"


def number(value: Any) -> str:
    """Format a number with at most two decimals, or, below 0.01, two digits; None becomes n/a."""
    if value is None:
        return "n/a"
    if 0 < abs(float(value)) < 0.01:
        return amounts.exact(float(f"{float(value):.2g}"))
    return f"{float(value):,.2f}".rstrip("0").rstrip(".")


def short_model(name: str) -> str:
    """Return the short name of a GPU model."""
    return name.removeprefix("NVIDIA ").replace("GeForce ", "")


def part_of(value: Any, total: Any) -> str:
    """Return a percentage from 0 to 100 for the width of a bar."""
    return "0" if not total else f"{min(100.0, 100 * float(value or 0) / float(total)):.1f}"


def parsed(value: Any) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) and value else value or None


def code_words(code: str) -> str:
    """Return a code with spaces."""
    return str(code).replace("_", " ") or "waiting"


def bar_own(tenant: dict[str, Any], scale: Any) -> str:
    """Return the percentage of a tenant's bar within its guarantee."""
    return part_of(min(tenant["gpus_held"], tenant["guaranteed_gpus"]), scale)


def borrowed(tenant: dict[str, Any]) -> float:
    """Return the GPUs that a tenant holds beyond its guarantee."""
    return max(0.0, float(tenant["gpus_held"]) - float(tenant["guaranteed_gpus"]))


def shape(name: str) -> SafeString:
    """Return the symbol of a state without its text."""
    return format_html('<i aria-hidden="true">{}</i>', STATE_SYMBOLS.get(name, "▨"))


def waits_on(code: str) -> str:
    """Return the wait group of a reason: next, quota, capacity, you or held."""
    return "held" if code in ("held_by_user", "held_by_admin") else group_of("pending", code)


def weight(seconds: Any) -> str:
    """Return the flex weight of a period."""
    return f"{max(float(seconds or 0), 0.1):.1f}"


def summed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sum periods by reason, longest first, with the count of each."""
    by: dict[str, dict[str, Any]] = {}
    for period in history:
        total = by.setdefault(period["code"], {"code": period["code"], "seconds": 0.0, "times": 0, "is_now": False})
        total["seconds"] += period["seconds"]
        total["times"] += 1
        total["is_now"] = total["is_now"] or not period["until_at"]
    return sorted(by.values(), key=lambda total: -total["seconds"])


def in_gpus(parts: Any) -> str:
    """Convert 25ths of a GPU, the unit of engine scores, to GPUs."""
    return number(float(parts) / 25)


def item(mapping: dict[str, Any], key: str) -> Any:
    """Return the value of a key held in a template variable, or the key itself."""
    return mapping.get(key, key)
